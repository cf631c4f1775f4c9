"""Removes logs after their tenant's retention, and records the removal.

The age of an attempt is that of its newest object. Its last chunk is stored after its end, so
nothing is removed early. Logs of a job that is unfinished in Slurm are kept, however old. A marker
is written before the removal, so that "removed" is never mistaken for "nothing was written". The
next sweep continues an interrupted one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, LatticeError, Unavailable
from lattice.domain.allocation_index import AllocationIndex
from lattice.domain.objects import NoObject, ObjectInfo, ObjectStore, unescaped
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import Expect, Put, StateStore
from lattice.features.logs.service.log_keys import AttemptName

_log = logging.getLogger(__name__)

REMOVED = "removed.json"
SWEEP_EVERY_S = 6 * 3600.0
TURN = "logs/retention"
"""A key of the state store: the time of the last sweep, so that one replica sweeps for all."""
AGAIN_S = 3600.0
"""After a sweep that failed."""
_CHECK_EVERY_S = 600.0
_RETRY_S = 60.0
_AT_ONCE = 8
_DEEPEST = 6
"""TENANT/PROJECT/ALLOCATION/logs/ATTEMPT and an object in it."""


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Days that logs are kept after an attempt; 0: for ever."""

    days: int = 0
    tenants: Mapping[str, int] = field(default_factory=dict)

    def of(self, tenant: str) -> int:
        """The days of one tenant."""
        return self.tenants.get(tenant, self.days)

    @property
    def shortest(self) -> int:
        """The fewest days after which something is removed; 0: nothing ever is."""
        return min((each for each in (self.days, *self.tenants.values()) if each), default=0)

    @property
    def longest(self) -> int:
        """The most days after which something is removed; 0: nothing ever is."""
        return max((self.days, *self.tenants.values()))

    @property
    def is_set(self) -> bool:
        """True if anything is ever removed."""
        return bool(self.days) or any(self.tenants.values())


class Removed(msgspec.Struct, frozen=True):
    """The record of removed logs of an attempt."""

    tenant: str
    after_days: int
    removed: datetime
    newest: datetime
    """When its last object was stored."""
    objects: int
    stored_bytes: int


@dataclass(slots=True)
class SweepCounts:
    """Counted since the start of the server."""

    sweeps_total: int = 0
    attempts_removed_total: int = 0
    objects_removed_total: int = 0
    bytes_removed_total: int = 0
    """As stored, compressed."""


@dataclass(slots=True)
class _StoredAttempt:
    """The objects of one attempt, from a listing."""

    prefix: str
    objects: list[ObjectInfo] = field(default_factory=list)

    @property
    def allocation(self) -> str:
        return unescaped(self.prefix.split("/")[2])

    @property
    def newest(self) -> datetime:
        return max(each.modified for each in self.objects)


class SealedRetention(Protocol):
    """The bucket of sensitive work, and the retention of its keys."""

    @property
    def objects(self) -> ObjectStore:
        """The bucket as it is."""

    async def sweep(self, days_of: Callable[[str], int], unfinished: Callable[[str], bool]) -> int:
        """Destroy the keys that nothing needs."""


class Retention:
    """Removes logs that are older than their tenant's retention."""

    def __init__(
        self,
        objects: ObjectStore,
        scheduler: Scheduler,
        clock: Clock,
        rules: RetentionRules,
        keys: SealedRetention | None = None,
    ) -> None:
        """`keys` has the bucket of sensitive work, which is swept in the same way."""
        self._keys = keys
        self._objects = objects
        self._scheduler = scheduler
        self._clock = clock
        self.rules = rules
        self.counts = SweepCounts()

    async def run(self, state: StateStore) -> None:
        """Run until cancelled. While no retention is set it waits for one."""
        while True:
            try:
                await self.sweep_in_turn(state)
                pause_s = _CHECK_EVERY_S
            except LatticeError as error:
                _log.warning("retention of logs: %s", error.message)
                pause_s = _RETRY_S
            await asyncio.sleep(pause_s)

    async def sweep_in_turn(self, state: StateStore) -> None:
        """Sweep if it is due. After a failure it is due again in an hour. Raises `Unavailable`."""
        if not self.rules.is_set:
            return
        # A server that has just started does not know Slurm's jobs yet: then it takes no turn.
        self._jobs()
        if not await self.take_turn(state):
            return
        try:
            await self.sweep()
        except LatticeError:
            due = self._clock.now().timestamp() - SWEEP_EVERY_S + AGAIN_S
            await state.put(TURN, b"%d" % due)
            raise

    async def take_turn(self, state: StateStore) -> bool:
        """True for one replica, six hours after the last sweep. Two sweeps at once do no harm."""
        now = self._clock.now().timestamp()
        entry = await state.get(TURN)
        if entry is not None and now - _moment(entry.value) < SWEEP_EVERY_S:
            return False
        expected = Expect(TURN, entry.revision if entry else 0)
        return await state.commit([expected], [Put(TURN, b"%d" % now)]) is not None

    async def sweep(self) -> None:
        """Scan the store once. Raises `Unavailable`."""
        self.counts.sweeps_total += 1
        await self._sweep_store(self._objects)
        if self._keys is not None:
            await self._sweep_store(self._keys.objects)
            jobs = self._jobs()
            await self._keys.sweep(self.rules.of, lambda each: _is_unfinished(each, jobs))

    async def _sweep_store(self, objects: ObjectStore) -> None:
        for folder in await objects.folders(""):
            tenant = unescaped(folder.rstrip("/"))
            days = self.rules.of(tenant)
            if days:
                await self._sweep_tenant(objects, folder, tenant, days)

    async def _sweep_tenant(
        self, objects: ObjectStore, folder: str, tenant: str, days: int
    ) -> None:
        limit = self._clock.now() - timedelta(days=days)
        jobs = self._jobs()
        async for attempt in _attempts(objects, folder):
            if attempt.newest < limit and not _is_unfinished(attempt.allocation, jobs):
                await self._remove(objects, attempt, tenant, days)

    def _jobs(self) -> AllocationIndex:
        """The jobs in Slurm."""
        reading = self._scheduler.live()
        if not reading.source.ok:
            raise Unavailable(
                "Slurm does not answer, so nobody knows which jobs are unfinished.",
                hint="Nothing is removed until it does.",
            )
        return reading.cluster.index

    async def _remove(
        self, objects: ObjectStore, attempt: _StoredAttempt, tenant: str, days: int
    ) -> None:
        size_bytes = sum(each.size_bytes for each in attempt.objects)
        removed = Removed(
            tenant=tenant,
            after_days=days,
            removed=self._clock.now(),
            newest=attempt.newest,
            objects=len(attempt.objects),
            stored_bytes=size_bytes,
        )
        # Of sensitive work too: the note has nothing of the text, and outlives the data key.
        await self._objects.put_new(f"{attempt.prefix}{REMOVED}", msgspec.json.encode(removed))
        turns = asyncio.Semaphore(_AT_ONCE)

        async def delete(key: str) -> None:
            async with turns:
                await objects.delete(key)

        await asyncio.gather(*(delete(each.key) for each in attempt.objects))
        self.counts.attempts_removed_total += 1
        self.counts.objects_removed_total += len(attempt.objects)
        self.counts.bytes_removed_total += size_bytes
        _log.info(
            "logs of allocation %s removed: older than the %d days of tenant %s (%s, %d bytes)",
            attempt.allocation, days, tenant, attempt.prefix, size_bytes,
        )  # fmt: skip


class Removals:
    """Tells whether the logs of an attempt were removed."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def of(self, name: AttemptName) -> Removed | None:
        """The record of the removal; None if there is none. Raises `Unavailable`."""
        try:
            content = await self._objects.read(f"{name.prefix}/{REMOVED}")
            return msgspec.json.decode(content, type=Removed)
        except (NoObject, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


def removal_error(name: AttemptName, removed: Removed) -> DataUnavailable:
    """The error for a query of removed logs."""
    attempt = f" (attempt {name.attempt.number})" if name.attempt.number > 1 else ""
    days = f"{removed.after_days} day{'' if removed.after_days == 1 else 's'}"
    return DataUnavailable(
        f"The logs of allocation {name.allocation.id}{attempt} were removed after {days} by the "
        f"retention of tenant {removed.tenant}.",
        hint=f"It was done on {removed.removed:%Y-%m-%d}. The job's own files are not touched.",
    )


async def _attempts(objects: ObjectStore, folder: str) -> AsyncIterator[_StoredAttempt]:
    """Every attempt of a tenant that has more objects than the marker."""
    found: _StoredAttempt | None = None
    async for each in objects.listing(folder):
        parts = each.key.split("/")
        if len(parts) < _DEEPEST or parts[3] != "logs" or parts[-1] == REMOVED:
            continue
        prefix = "/".join(parts[:5]) + "/"
        if found is None or found.prefix != prefix:
            if found is not None:
                yield found
            found = _StoredAttempt(prefix)
        found.objects.append(each)
    if found is not None:
        yield found


def _is_unfinished(allocation: str, jobs: AllocationIndex) -> bool:
    """Whether the job is unfinished in Slurm; an array or het job counts as a whole."""
    whole = _whole_job(allocation)
    return whole.isdecimal() and any(
        not each.state.finished and _whole_job(each.id) == whole for each in jobs.of_job(int(whole))
    )


def _whole_job(allocation: str) -> str:
    """`12` for `12`, `12_7`, `12_[1-9]`, `12+1` and `12@1772366400`."""
    return allocation.partition("@")[0].partition("_")[0].partition("+")[0]


def _moment(value: bytes) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0
