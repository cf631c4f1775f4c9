"""Who may read an allocation's output and who has, for its owner's card. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.table import Cell
from lattice.base.text import inert
from lattice.domain.sharing import ReadRecord, Share
from lattice.features.allocations.model import AllocationCard

_MOST_LINES = 3


def reader_facts(answer: AllocationCard, style: Style, now: datetime) -> list[tuple[str, Cell]]:
    """Return one line with the shares and up to three lines with the latest readers."""
    facts: list[tuple[str, Cell]] = []
    if answer.shares:
        facts.append(("Shared", _shared(answer.shares, style, now)))
    readers = _by_reader(answer.readers)
    for number, records in enumerate(readers[:_MOST_LINES]):
        facts.append(("Read" if not number else "", _read(records, style, now)))
    if len(readers) > _MOST_LINES:
        more = len(readers) - _MOST_LINES
        facts.append(("", f"and by {more} more: lattice share {inert(answer.allocation.id)}"))
    return facts


def _shared(shares: Sequence[Share], style: Style, now: datetime) -> str:
    told = [f"{inert(each.user)} until {moment(each.until, style, now)}" for each in shares]
    shown = ", ".join(told[:_MOST_LINES])
    more = f" and {len(told) - _MOST_LINES} more" if len(told) > _MOST_LINES else ""
    return f"with {shown}{more}"


def _by_reader(records: Sequence[ReadRecord]) -> list[list[ReadRecord]]:
    """Group records by reader, in the given order: newest first."""
    found: dict[str, list[ReadRecord]] = {}
    for each in records:
        found.setdefault(each.reader, []).append(each)
    return list(found.values())


def _read(records: Sequence[ReadRecord], style: Style, now: datetime) -> str:
    newest = records[0]
    times = max(sum(each.times for each in records), 1)
    often = "once" if times == 1 else f"{times} times"
    last = moment(newest.last, style, now)
    return f"by {inert(newest.reader)} ({newest.standing.value}) {often}, last {last}"
