"""What the feature asks and answers, and how reads are counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lattice.domain.sharing import ReadRecord, Share, Way

LONGEST_USER = 64
ONE_LOOK_S = 10.0
"""What one reader asks for in the same way within this is one read: a page and the next."""
MOST_HOURS = 24
"""Records kept of one reader and one allocation; older hours are added up into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOrder:
    """With whom, and for how long; 0 is the server's usual time."""

    user: str
    duration_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshareOrder:
    """With whom no longer."""

    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSharing:
    """With whom an allocation is shared, and who but the owner has read it; newest first."""

    allocation: str
    shares: tuple[Share, ...] = ()
    readers: tuple[ReadRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """How long a share lasts if nothing is said, and at most."""

    usual: timedelta = timedelta(days=7)
    longest: timedelta = timedelta(days=30)


def noted(
    records: Sequence[ReadRecord], new: ReadRecord, way: Way, *, goes_on: bool
) -> tuple[ReadRecord, ...]:
    """The records of one reader and one allocation, oldest first, with one more read in them.

    `new` says who, what, by which right and when; it is added to its hour.
    """
    kept = list(records)
    if kept and _same_hour(kept[-1], new):
        last = kept.pop()
        added = replace(last, last=max(last.last, new.last))
    else:
        added = new
    kept.append(added if goes_on else _counted(added, way))
    while len(kept) > MOST_HOURS:
        kept[:2] = [_together(kept[0], kept[1])]
    return tuple(kept)


def _same_hour(last: ReadRecord, new: ReadRecord) -> bool:
    return _hour(last.first) == _hour(new.first) and last.standing is new.standing


def _counted(record: ReadRecord, way: Way) -> ReadRecord:
    match way:
        case Way.LIST:
            return record
        case Way.READ:
            return replace(record, reads=record.reads + 1)
        case Way.FOLLOW:
            return replace(record, follows=record.follows + 1)
        case Way.DOWNLOAD:
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
