"""Active checks of nodes: what a check job measured, and what in it is a warning. Pure.

A check runs as an ordinary job. Each of its nodes prints one line. That text is untrusted, so it is
parsed strictly and bounded. The newest results of a node are one key of the agreed state:

    check-begun/MARK     a check that is being submitted: its job is found by the mark
    check-jobs/ID        a check whose result is not there yet
    check-results/NODE   the newest results of a node, newest first
    check-warnings/NODE  what the newest of them warns of; absent if it warns of nothing
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import Any

import msgspec

from lattice.base.quantity import number
from lattice.base.strictjson import read_json
from lattice.base.text import inert

BEGUN, JOBS = "check-begun/", "check-jobs/"
RESULTS, WARNINGS = "check-results/", "check-warnings/"
MOST_RESULTS = 8
"""Of one node; older ones are removed."""
MOST_NODES = 256
"""Of one check."""
MEASURES: Mapping[str, str] = {
    "all_reduce": "bytes/s",
    "gpu_all_reduce": "bytes/s",
    "disk_read": "bytes/s",
    "disk_write": "bytes/s",
    "link": "bytes/s",
    "trip": "s",
    "rdma_ports_down": "",
}
"""What a check measures, each with its unit."""
TITLES: Mapping[str, str] = {
    "all_reduce": "all-reduce over the nodes",
    "gpu_all_reduce": "all-reduce of its GPUs",
    "disk_read": "disk, reading",
    "disk_write": "disk, writing",
    "link": "link to the next node",
    "trip": "round trip to the next node",
    "rdma_ports_down": "RDMA ports that are down",
}
WRONG = "the all-reduce gave a wrong result"
_FASTER_IS_BETTER = tuple(each for each, unit in MEASURES.items() if unit == "bytes/s")
_LOW = 0.5
"""Share of what is usual, below which a figure is a warning."""
_LEAST_EARLIER, _LEAST_PEERS = 3, 2
_PEERED = ("disk_read", "disk_write", "link", "gpu_all_reduce")
"""What nodes of one check are compared by: the all-reduce is the same for all."""
_LINE = re.compile(r"^lattice-check ([0-9a-f]{32}) (\{.*\})$", re.MULTILINE)
_LONGEST, _LONGEST_LINE, _LARGEST = 200, 64 * 1024, 1e18


class BadCheck(ValueError):
    """A stored value is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckMeasure:
    """One figure of a check, or why there is none."""

    name: str
    """One of `MEASURES`."""
    value: float | None = None
    tool: str = ""
    """What measured it."""
    peer: str = ""
    """The node at the other end of a link."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """The result of one check for one node."""

    job_id: int
    at: datetime
    by: str
    """Who had the node checked."""
    nodes: str
    """All nodes of that check."""
    measures: tuple[CheckMeasure, ...] = ()
    warnings: tuple[str, ...] = ()
    reason: str = ""
    """Why there is no result."""

    def value(self, name: str) -> float | None:
        """A figure, if it was measured."""
        return next((each.value for each in self.measures if each.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob:
    """A check that has no result yet."""

    job_id: int
    """0 while it is being submitted."""
    nodes: str
    user: str
    """Whose job it is."""
    by: str
    secret: str
    """Marks the lines of its output."""
    submitted: datetime


def read_output(text: str, secret: str) -> dict[str, tuple[CheckMeasure, ...]]:
    """The measures of each node, from the output of a check. A line that is not valid is skipped.

    The first line of a node counts.
    """
    found: dict[str, tuple[CheckMeasure, ...]] = {}
    for mark, document in _LINE.findall(text):
        if mark != secret or len(document) > _LONGEST_LINE:
            continue
        try:
            value = read_json(document.encode())
            node, measures = value["node"], value["measures"]
            if type(node) is str and type(measures) is list and len(measures) <= len(MEASURES):
                found.setdefault(node, tuple(map(_measure, measures)))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _measure(value: Any) -> CheckMeasure:
    name, figure = value["name"], value.get("value")
    if name not in MEASURES:
        raise ValueError("no measure")
    if figure is not None and (
        type(figure) not in {int, float} or not 0 <= figure <= _LARGEST
    ):  # fmt: skip
        raise ValueError("no figure")
    tool, peer, reason = (_text(value.get(each, "")) for each in ("tool", "peer", "reason"))
    if figure is None and not reason:
        reason = "the check gave no reason"
    return CheckMeasure(
        name=name,
        value=None if figure is None else float(figure),
        tool=tool,
        peer=peer,
        reason="" if figure is not None else reason,
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("no text")
    return inert(value)[:_LONGEST]


def judged_check(
    check: NodeCheck, earlier: Sequence[NodeCheck], peers: Sequence[NodeCheck]
) -> NodeCheck:
    """The result with its warnings, each with its evidence.

    `earlier` are results of the same node, `peers` those of the other nodes of this check.
    """
    found = []
    for each in check.measures:
        if each.reason == WRONG:
            found.append(WRONG)
        if each.name == "rdma_ports_down" and each.value:
            found.append(f"RDMA ports are down: {each.tool}")
        if each.name in _FASTER_IS_BETTER and each.value is not None:
            found += _low(each, each.value, earlier, peers)
    return replace(check, warnings=tuple(found))


def _low(
    measure: CheckMeasure, value: float, earlier: Sequence[NodeCheck], peers: Sequence[NodeCheck]
) -> list[str]:
    """Whether a figure is less than half of what this node had, or of what the others have."""
    name = measure.name
    to = f" {measure.peer}" if measure.peer else ""
    shown = f"{TITLES[name]}{to}: {number(value, 'bytes/s')}"
    for others, least, source in (
        (earlier, _LEAST_EARLIER, "in {} earlier checks of this node"),
        (peers if name in _PEERED else (), _LEAST_PEERS, "of {} other nodes in the same check"),
    ):
        known = [figure for each in others if (figure := _same_tool(each, measure)) is not None]
        if len(known) >= least and value < _LOW * median(known):
            usual = f"the median {source.format(len(known))} is {number(median(known), 'bytes/s')}"
            return [f"{shown}; {usual}"]
    return []


def _same_tool(check: NodeCheck, measure: CheckMeasure) -> float | None:
    """The figure of another check, if the same tool measured it."""
    for each in check.measures:
        if (each.name, each.tool) == (measure.name, measure.tool):
            return each.value
    return None


def with_result(results: Sequence[NodeCheck], check: NodeCheck) -> tuple[NodeCheck, ...]:
    """The results with another one, newest first; the same check again replaces itself."""
    others = [each for each in results if each.job_id != check.job_id]
    merged = sorted((check, *others), key=lambda each: each.at, reverse=True)
    return tuple(merged[:MOST_RESULTS])


def warning_of(results: Sequence[NodeCheck]) -> str:
    """What the newest result warns of, for people; empty if nothing."""
    if not results or not results[0].warnings:
        return ""
    first = results[0]
    more = len(first.warnings) - 1
    others = f" (and {more} more)" if more else ""
    return f"check {first.job_id}: {first.warnings[0]}{others}"[: 2 * _LONGEST]


def written_check(value: CheckJob | Sequence[NodeCheck]) -> bytes:
    """The value of a key."""
    return msgspec.json.encode(value)


def read_check_job(value: bytes) -> CheckJob:
    """Raises `BadCheck`."""
    try:
        return msgspec.json.decode(value, type=CheckJob)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheck(str(error)) from None


def read_results(value: bytes) -> tuple[NodeCheck, ...]:
    """Raises `BadCheck`."""
    try:
        return msgspec.json.decode(value, type=tuple[NodeCheck, ...])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheck(str(error)) from None
