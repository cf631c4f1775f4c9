"""What befalls many nodes in one moment, as one event. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lattice.base.text import inert
from lattice.domain.nodeset import NodeSet
from lattice.features.watch.model import WatchAlert, WatchNode, WatchRecord
from lattice.features.watch.render.values import number, span

FEWEST = 3
"""Fewer are told one by one."""


def folded(records: Iterable[WatchRecord]) -> list[tuple[WatchRecord, ...]]:
    """Alike ones together, in the order in which each kind first came."""
    groups: dict[object, list[WatchRecord]] = {}
    for at, each in enumerate(records):
        groups.setdefault(_kind(each, at), []).append(each)
    found: list[tuple[WatchRecord, ...]] = []
    for group in groups.values():
        found += [tuple(group)] if len(group) >= FEWEST else [(each,) for each in group]
    return found


def _kind(record: WatchRecord, at: int) -> object:
    if isinstance(record, WatchAlert):
        return record.rule, record.phase, record.severity
    if isinstance(record, WatchNode):
        return record.word, record.reason
    return at


def nodes_of(records: Sequence[WatchAlert] | Sequence[WatchNode]) -> tuple[int, str]:
    """How many nodes they are of, and which."""
    names = list(dict.fromkeys(each.node for each in records))
    try:
        return len(names), inert(NodeSet(names).fold())
    except ValueError:
        return len(names), ",".join(inert(each) for each in names)


def where(alerts: Sequence[WatchAlert]) -> str:
    """`gpu_idle on 37 nodes, n[1-37]`; with how many there are, where it is not one a node."""
    count, nodes = nodes_of(alerts)
    on = nodes if count == 1 else f"{count} nodes, {nodes}"
    times = f" {len(alerts)} times" if len(alerts) != count else ""
    return f"{inert(alerts[0].rule)}{times} on {on}"


def values(alerts: Sequence[WatchAlert]) -> str:
    """`1 % to 7 %`; nothing where some have no value."""
    told = [each.value for each in alerts if each.value is not None]
    if len(told) != len(alerts):
        return ""
    low, high = (number(each, inert(alerts[0].unit)) for each in (min(told), max(told)))
    return low if low == high else f"{low} to {high}"


def after(alerts: Sequence[WatchAlert]) -> str:
    """` after 4 m to 6 m`."""
    told = [each.lasted_s for each in alerts if each.lasted_s is not None]
    if not told:
        return ""
    low, high = span(min(told)), span(max(told))
    return f" after {low}" if low == high else f" after {low} to {high}"
