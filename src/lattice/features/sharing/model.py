"""Requests and answers of the feature, and how reads are counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lattice.domain.sharing import ReadKind, ReadRecord, Share

LONGEST_USER = 64
ONE_READ_S = 10.0
"""Reads of the same kind by one reader within this time count as one, such as several pages."""
MOST_HOURS = 24
"""Records kept per reader and allocation; older hours are merged into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSharing:
    """Shares of an allocation by user, and its other readers, newest first."""

    allocation: str
    shares: tuple[Share, ...] = ()
    readers: tuple[ReadRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """How long a share lasts by default, and at most."""

    usual: timedelta = timedelta(days=7)
    longest: timedelta = timedelta(days=30)


def noted(
    records: Sequence[ReadRecord], new: ReadRecord, kind: ReadKind, *, goes_on: bool
) -> tuple[ReadRecord, ...]:
    """Return the records of one reader and one allocation, oldest first, with one more read.

    `new` has the reader, the right and the time. It is merged into the record of its hour.
    """
    merged = list(records)
    if merged and _same_hour(merged[-1], new):
        last = merged.pop()
        added = replace(last, last=max(last.last, new.last))
    else:
        added = new
    merged.append(added if goes_on else _counted(added, kind))
    while len(merged) > MOST_HOURS:
        merged[:2] = [_together(merged[0], merged[1])]
    return tuple(merged)


def _same_hour(last: ReadRecord, new: ReadRecord) -> bool:
    return _hour(last.first) == _hour(new.first) and last.standing is new.standing


def _counted(record: ReadRecord, kind: ReadKind) -> ReadRecord:
    match kind:
        case ReadKind.LIST:
            return record
        case ReadKind.READ | ReadKind.MEASURE:
            return replace(record, reads=record.reads + 1)
        case ReadKind.FOLLOW | ReadKind.OBSERVE:
            return replace(record, follows=record.follows + 1)
        case ReadKind.DOWNLOAD:
            return replace(record, downloads=record.downloads + 1)


def _together(older: ReadRecord, newer: ReadRecord) -> ReadRecord:
    return replace(
        newer,
        first=older.first,
        reads=older.reads + newer.reads,
        follows=older.follows + newer.follows,
        downloads=older.downloads + newer.downloads,
    )


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
