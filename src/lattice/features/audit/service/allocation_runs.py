"""Starts and ends of sensitive allocations, as entries of the audit log.

    audit/run/ALLOCATION/START     a run that was recorded: its start, and its end if it is over
    audit/runs                     since when runs are recorded, and until when Slurm was asked

Every server may run this. The id of an event is made from the run. So a second server, or a retry
after a crash, finds the entry of the first. Slurm's accounting has what started or ended while all
servers were away. It is asked for all that ended since its last answer, and an hour before. It may
learn of an end late.

Ordinary allocations are not recorded: there are too many, and Slurm's accounting has them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.failpoints import failpoint
from lattice.domain.allocation import Allocation, Attempt, BadReference, parse_reference
from lattice.domain.allocation_index import ChangeCursor
from lattice.domain.attempts import attempts_of
from lattice.domain.audit import AuditAct, AuditEvent, AuditTrail
from lattice.domain.scheduler import LiveCluster, PastQuestion, Scheduler, Scope
from lattice.domain.state import Delete, Entry, Expect, Put, StateStore
from lattice.domain.vcluster import VclusterKind, Vclusters

_log = logging.getLogger("lattice.audit")

RUNS = "audit/run/"
PERIOD = "audit/runs"
EVERY_S = 5.0
PAST_EVERY_S = 120.0
LATE = timedelta(hours=1)
"""Accounting knows of an end by then."""
_EVERYTHING = Scope(everything=True)
_SWEPT_AT_ONCE = 50
_OPEN = b"open"
"""The value while a run goes on; then it is the time of its end."""


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """One run of a sensitive allocation: its start, and its end once it is over."""

    allocation: Allocation
    attempt: Attempt
    started: datetime
    ended: datetime | None

    @property
    def key(self) -> str:
        return f"{RUNS}{self.allocation.ref}/{int(self.started.timestamp())}"

    def event(self, act: AuditAct) -> AuditEvent:
        """The event of its start or its end, the same on every server."""
        name = f"{act.value} {self.allocation.cluster} {self.key}"
        return AuditEvent(
            event=hashlib.sha256(name.encode()).hexdigest(),
            act=act,
            allocation=self.allocation.ref,
            owner=self.allocation.user,
            of_tenant=self.allocation.tenant,
            target=self.allocation.vcluster or "",
            detail=self._began() if act is AuditAct.ALLOCATION_START else self._ended(),
        )

    def _began(self) -> str:
        return f"{_moment(self.started)} on {self.attempt.nodes or self.allocation.nodes}"

    def _ended(self) -> str:
        assert self.ended is not None
        code = self.attempt.exit_code
        shown = f", exit code {code}" if code is not None else ""
        return f"{_moment(self.ended)}, {self.attempt.state.value}{shown}"


@dataclass(frozen=True, slots=True)
class _Period:
    """Since when runs are recorded, and until when accounting was asked."""

    begun: datetime
    until: datetime
    revision: int = 0

    @property
    def oldest(self) -> datetime:
        """A run that ended before this was recorded, or ended before the beginning."""
        return max(self.begun, self.until - LATE)

    def encoded(self) -> bytes:
        return json.dumps([self.begun.timestamp(), self.until.timestamp()]).encode()


class AllocationRuns:
    """Records the runs of allocations in sensitive vClusters."""

    def __init__(
        self,
        state: StateStore,
        trail: AuditTrail,
        scheduler: Scheduler,
        views: Vclusters,
        clock: Clock,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`state` verifies what it reads: who can write to etcd must not hide a run."""
        self._state = state
        self._trail = trail
        self._scheduler = scheduler
        self._views = views
        self._clock = clock
        self._sleep = sleep
        self._asked_s = float("-inf")
        self._cursor = ChangeCursor()
        self._live: dict[int, Allocation] = {}
        """The sensitive ones in Slurm, by identity."""
        self._followed = views.views
        """The vClusters by which those were chosen."""
        self.recorded_total = 0

    async def run(self) -> None:
        """Record what is due, until cancelled."""
        while True:
            try:
                await self.step()
            except Unavailable as problem:
                _log.warning("allocations are not audited now", extra={"why": problem.message})
            await self._sleep(EVERY_S)

    async def step(self) -> None:
        """Record every start and end that is known and new. Raises `Unavailable`."""
        if not any(each.kind is VclusterKind.SENSITIVE for each in self._views.views):
            return
        period = await self._period()
        records = {each.key: each for each in (await self._state.list(RUNS)).entries}
        live = self._scheduler.live()
        runs = list(self._runs(self._sensitive(live.cluster) if live.source.ok else ()))
        await self._record(runs, records, period)
        if self._clock.monotonic() - self._asked_s >= PAST_EVERY_S:
            await self._catch_up(runs, records, period)

    def _sensitive(self, cluster: LiveCluster) -> Iterable[Allocation]:
        views = self._views.views
        if views != self._followed:
            self._followed, self._cursor, self._live = views, ChangeCursor(), {}
        change = self._cursor.changes(cluster.index)
        for each in change.gone:
            self._live.pop(id(each), None)
        self._live.update((id(each), each) for each in change.added if self._is_sensitive(each))
        return self._live.values()

    async def _catch_up(
        self, live: Iterable[AuditedRun], records: dict[str, Entry], period: _Period
    ) -> None:
        """Record what accounting alone knows: runs that ended unseen, and ends that were missed."""
        now = self._clock.now()
        since = min(period.until, now) - LATE
        found = await self._scheduler.past(PastQuestion(scope=_EVERYTHING, since=since))
        await self._record(self._runs(found), records, period)
        running = {each.key for each in live}
        for key, entry in list(records.items()):
            if not _is_over(entry) and key not in running:
                await self._record(await self._runs_of(key), records, period)
        later = _Period(period.begun, max(period.until, now))
        await self._state.commit([Expect(PERIOD, period.revision)], [Put(PERIOD, later.encoded())])
        await self._sweep(records.values(), period.until - 2 * LATE)
        self._asked_s = self._clock.monotonic()

    async def _runs_of(self, key: str) -> list[AuditedRun]:
        """The runs of an allocation that was recorded, by its key."""
        try:
            reference = parse_reference(key.removeprefix(RUNS).rpartition("/")[0])
        except BadReference:
            return []
        question = PastQuestion(scope=_EVERYTHING, reference=reference)
        return list(self._runs(await self._scheduler.past(question)))

    async def _period(self) -> _Period:
        entry = await self._state.get(PERIOD)
        if entry is None:
            now = self._clock.now()
            begun = _Period(now, now)
            await self._state.commit([Expect(PERIOD, 0)], [Put(PERIOD, begun.encoded())])
            entry = await self._state.get(PERIOD)
            assert entry is not None
        try:
            first, until = (datetime.fromtimestamp(each, UTC) for each in json.loads(entry.value))
        except (ValueError, TypeError, OverflowError):
            _log.error("the record of audited allocations can't be read; it begins anew")
            first = until = self._clock.now()
        return _Period(first, until, entry.revision)

    def _runs(self, allocations: Iterable[Allocation]) -> Iterator[AuditedRun]:
        for each in allocations:
            # Without its first submit an allocation has no identity yet.
            if self._is_sensitive(each) and each.first_submitted is not None:
                yield from _runs_in(each)

    def _is_sensitive(self, allocation: Allocation) -> bool:
        return self._views.kind_of(allocation.vcluster) is VclusterKind.SENSITIVE

    async def _record(
        self, runs: Iterable[AuditedRun], records: dict[str, Entry], period: _Period
    ) -> None:
        """Record starts and ends without a record; the entry first, then the record of it."""
        for run in runs:
            record = records.get(run.key)
            if record is not None and not _is_readable(record):
                record = None
            if record is None and run.ended is not None and run.ended < period.oldest:
                continue
            if record is None:
                await self._trail.require(run.event(AuditAct.ALLOCATION_START))
                failpoint("audit.run.started")
                record = await self._note(run, records, None)
            if run.ended is not None and not _is_over(record):
                await self._trail.require(run.event(AuditAct.ALLOCATION_END))
                failpoint("audit.run.ended")
                await self._note(run, records, run.ended)

    async def _note(
        self, run: AuditedRun, records: dict[str, Entry], ended: datetime | None
    ) -> Entry:
        self.recorded_total += 1
        value = _OPEN if ended is None else b"%d" % ended.timestamp()
        before = records[run.key].revision if run.key in records else 0
        await self._state.commit([Expect(run.key, before)], [Put(run.key, value)])
        # If another server was first, it wrote the same, or more.
        entry = await self._state.get(run.key)
        records[run.key] = entry if entry is not None else Entry(run.key, value, 0, 0)
        return records[run.key]

    async def _sweep(self, entries: Iterable[Entry], before: datetime) -> None:
        old = [each for each in entries if _is_over(each) and int(each.value) < before.timestamp()]
        for at in range(0, len(old), _SWEPT_AT_ONCE):
            part = old[at : at + _SWEPT_AT_ONCE]
            await self._state.commit(
                [Expect(each.key, each.revision) for each in part],
                [Delete(each.key) for each in part],
            )


def _runs_in(allocation: Allocation) -> Iterator[AuditedRun]:
    attempts = attempts_of(allocation)
    for each in attempts:
        if each.started is None:
            continue
        # A completing run has an end too, while its nodes still clean up.
        is_over = each.state.finished or each is not attempts[-1] or allocation.state.waiting
        yield AuditedRun(allocation, each, each.started, each.ended if is_over else None)


def _is_over(record: Entry) -> bool:
    return record.value.isdigit()


def _is_readable(record: Entry) -> bool:
    """False for a record that no server signed."""
    return record.value == _OPEN or _is_over(record)


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
