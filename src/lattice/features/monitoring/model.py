"""What the feature counts: classes of reasons, the shared count of ends, expiries. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Protocol

import msgspec

from lattice.domain.allocation import Allocation, Reason

OTHER = "other"
"""The label of what exceeds a bound."""
MOST_ENDED_ROWS = 1000
DIGEST_BYTES = 8


class PendingClass(StrEnum):
    """Why jobs wait, in classes: Slurm has about 150 codes."""

    PRIORITY = "priority"
    RESOURCES = "resources"
    DEPENDENCY = "dependency"
    LIMIT = "limit"
    HELD = "held"
    BEGIN_TIME = "begin_time"
    RESERVATION = "reservation"
    UNAVAILABLE = "unavailable"
    """A node or a partition that it needs is down, drained or inactive."""
    REQUEST = "request"
    """What it asks for can't be given."""
    OTHER = OTHER


_CLASSES = {
    code: kind
    for kind, codes in {
        PendingClass.PRIORITY: "Priority None",
        PendingClass.RESOURCES: "Resources Licenses BurstBufferResources BurstBufferStageIn "
        "PowerNotAvail PowerReserved Cleaning",
        PendingClass.DEPENDENCY: "Dependency DependencyNeverSatisfied",
        PendingClass.HELD: "JobHeldUser JobHeldAdmin JobHoldMaxRequeue",
        PendingClass.BEGIN_TIME: "BeginTime",
        PendingClass.LIMIT: "JobArrayTaskLimit AccountingPolicy AssociationJobLimit "
        "AssociationResourceLimit AssociationTimeLimit QOSJobLimit QOSResourceLimit QOSTimeLimit "
        "QOSUsageThreshold",
        PendingClass.RESERVATION: "Reservation ReservationDeleted ReservationInvalid",
        PendingClass.UNAVAILABLE: "ReqNodeNotAvail NodeDown FrontEndDown PartitionDown "
        "PartitionInactive",
        PendingClass.REQUEST: "PartitionNodeLimit PartitionTimeLimit PartitionConfig "
        "BadConstraints Constraints AccountNotAllowed InvalidAccount InvalidQOS QOSNotAllowed "
        "QOSMinCpuNotSatisfied MaxMemPerLimit DeadLine",
    }.items()
    for code in codes.split()
}
_LIMIT = re.compile(r"(Assoc|QOS)?(Grp|Max)\w+", re.IGNORECASE)


def pending_class(reason: Reason | None) -> PendingClass:
    """The class of a reason; no reason yet counts as waiting for its turn."""
    if reason is None:
        return PendingClass.PRIORITY
    known = _CLASSES.get(reason.code)
    if known is None and _LIMIT.fullmatch(reason.code):
        return PendingClass.LIMIT
    return known or PendingClass.OTHER


def capped(counts: Counter[str], most: int) -> Mapping[str, str]:
    """The label of each value: itself for those that occur most, `other` for the rest."""
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    return {value: value if rank < most else OTHER for rank, value in enumerate(ranked)}


EndedRow = tuple[str, str, str]
"""User, project and final state. The former two are empty if the site does not show names."""


@dataclass(slots=True)
class EndedCounts:
    """How many jobs ended since `since`, over all servers."""

    since: float
    rows: dict[EndedRow, int] = field(default_factory=dict)

    def add(self, row: EndedRow) -> None:
        if row not in self.rows and len(self.rows) >= MOST_ENDED_ROWS:
            row = (OTHER, OTHER, row[2])
        self.rows[row] = self.rows.get(row, 0) + 1

    def by_outcome(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (_, _, outcome), count in self.rows.items():
            found[outcome] += count
        return found

    def encoded(self) -> bytes:
        rows = [(*row, count) for row, count in self.rows.items()]
        return msgspec.json.encode({"since": self.since, "rows": rows})


class BadCounts(Exception):
    """The value can't be parsed."""


class _Stored(msgspec.Struct):
    since: float
    rows: list[tuple[str, str, str, int]]


def read_counts(value: bytes) -> EndedCounts:
    """Parse what `encoded` returned. Raises `BadCounts`."""
    try:
        stored = msgspec.json.decode(value, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCounts(str(error)) from None
    return EndedCounts(stored.since, {(u, p, o): n for u, p, o, n in stored.rows})


def end_digest(allocation: Allocation) -> bytes:
    """Names one end of one job, also after its id was used again."""
    ended = int(allocation.ended.timestamp()) if allocation.ended else 0
    return blake2b(f"{allocation.job_id}/{ended}".encode(), digest_size=DIGEST_BYTES).digest()


def digests(value: bytes) -> Iterator[bytes]:
    for start in range(0, len(value) - DIGEST_BYTES + 1, DIGEST_BYTES):
        yield value[start : start + DIGEST_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedNodes:
    """Nodes whose certificate is refused."""

    revoked: int
    quarantine: int


class Expiries(Protocol):
    """When certificates expire, in seconds since 1970; None: there is none, or nobody knows."""

    async def people(self) -> float | None:
        """Of the listeners for people. Raises `OSError`, `LatticeError`."""

    async def authority(self) -> float | None:
        """Of the cluster's own authority. Raises `OSError`, `LatticeError`."""

    async def agents(self) -> float | None:
        """The soonest of linked agents."""

    def refused(self) -> RefusedNodes | None:
        """None: nobody knows."""
