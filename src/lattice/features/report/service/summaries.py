"""Stores a summary of every finished attempt, so that it outlives the metric store.

Every server sees which attempts end. A hash of the key assigns each attempt to one server; the
others try a little later, in case it is down. Two writers do no harm: the document is put only if
absent. It is written when the last samples from agents have had time to arrive, and not while the
metric store is down. Attempts that nobody stored are found again in slurmdbd.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt, attempts_of, named
from lattice.domain.metricstore import StoreSilent
from lattice.domain.objects import BadKeyPart, NoObject, ObjectStore
from lattice.domain.runsummary import BadSummary, RunSummary, decoded, encoded, summary_key
from lattice.domain.scheduler import PastQuestion, Scheduler, Scope
from lattice.features.report.model import LEAST_COVERED
from lattice.features.report.service.run_meter import RunMeter

_log = logging.getLogger(__name__)
SETTLE_S = 120.0
"""After the end: the last samples of all nodes have arrived."""
LATEST_S = 1200.0
"""After the end: agents keep unsent samples for a quarter of an hour, and no longer."""
OTHERS_AFTER_S = 300.0
"""Extra delay for an attempt that is assigned to another server."""
REMEMBERED = timedelta(hours=24)
"""How far back slurmdbd is searched."""
_PAST_EVERY_S = 6 * 3600.0
_ROUND_S = 15.0
_AGAIN_S = 60.0
_A_ROUND = 20
"""Most summaries written in one round."""
_MOST_WAITING = 50_000
_EVERYTHING = Scope(everything=True)


class StoredSummaries:
    """The object store: one document per attempt, which any server reads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def of(self, attempt: JobAttempt) -> RunSummary | None:
        """Return the stored summary, or None if there is none that parses. Raises `Unavailable`."""
        key = summary_key(attempt)
        try:
            return decoded(await self._objects.read(key))
        except NoObject:
            return None
        except BadSummary as error:
            _log.warning("%s is no summary of a run: %s", key, error)
            return None

    async def is_there(self, attempt: JobAttempt) -> bool:
        """Return True if the store has a summary of it. Raises `Unavailable`."""
        key = summary_key(attempt)
        async for each in self._objects.listing(key):
            if each.key == key:
                return True
        return False

    async def keep(self, attempt: JobAttempt, summary: RunSummary) -> bool:
        """Write it; return False if another server has done so before. Raises `Unavailable`."""
        return await self._objects.put_new(summary_key(attempt), encoded(summary))


@dataclass(slots=True)
class SummaryCounts:
    """Counts since the server started."""

    written_total: int = 0
    elsewhere_total: int = 0
    """Another server had written it."""
    silent_total: int = 0
    """Postponed because the metric store did not answer."""


class SummaryLoop:
    """Stores summaries. `replicas` returns the ids of running servers; `replica` is this one."""

    def __init__(
        self,
        scheduler: Scheduler,
        meter: RunMeter,
        summaries: StoredSummaries,
        clock: Clock,
        replica: str = "",
        replicas: Callable[[], Collection[str]] = tuple,
        is_sensitive: Callable[[Allocation], bool] = lambda _: False,
    ) -> None:
        self._is_sensitive = is_sensitive
        self._scheduler = scheduler
        self._meter = meter
        self._summaries = summaries
        self._clock = clock
        self._replica = replica
        self._replicas = replicas
        self._due: dict[str, tuple[float, JobAttempt]] = {}
        self._done: dict[str, float] = {}
        self._past_s: float | None = None
        self.counts = SummaryCounts()

    @property
    def waiting(self) -> int:
        """Finished attempts without a summary, as far as this server knows."""
        return len(self._due)

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            try:
                await self.run_round()
            except LatticeError as error:
                _log.info("summaries of runs: %s", error.message)
            await asyncio.sleep(_ROUND_S)

    async def run_round(self) -> None:
        """Register attempts that have ended, and write what is due. Raises `Unavailable`."""
        self._note(self._scheduler.live().cluster.allocations)
        now_s = self._clock.monotonic()
        if self._past_s is None or now_s - self._past_s > _PAST_EVERY_S:
            since = self._clock.now() - REMEMBERED
            self._note(await self._scheduler.past(PastQuestion(scope=_EVERYTHING, since=since)))
            self._past_s = now_s
        now = self._clock.now().timestamp()
        due = sorted(key for key, (at, _) in self._due.items() if at <= now)
        for key in due[:_A_ROUND]:
            attempt = self._due[key][1]
            # Postpone first: a failure is retried later, not at once.
            self._due[key] = (now + _AGAIN_S, attempt)
            if await self._written(attempt, now):
                del self._due[key]
                self._done[key] = now
        self._forget(now)

    def _note(self, allocations: Iterable[Allocation]) -> None:
        now = self._clock.now()
        for each in allocations:
            if self._is_sensitive(each):
                # Nothing measured of sensitive work is stored.
                continue
            for attempt in attempts_of(each):
                if attempt.started is None or attempt.ended is None:
                    continue
                if attempt.ended < now - REMEMBERED:
                    continue
                self._note_one(each, JobAttempt(each, attempt), attempt.ended.timestamp())

    def _note_one(self, allocation: Allocation, found: JobAttempt, ended: float) -> None:
        try:
            accounts = self._scheduler.live().cluster.accounts
            key = summary_key(named(allocation, found.attempt, accounts, self._clock.now()))
        except (LatticeError, BadKeyPart):
            return  # the tenant is known in the next round, or the name can't be a key
        if key in self._due or key in self._done or len(self._due) >= _MOST_WAITING:
            return
        later_s = 0.0 if self._is_mine(key) else OTHERS_AFTER_S
        self._due[key] = (ended + SETTLE_S + later_s, found)

    def _is_mine(self, key: str) -> bool:
        replicas = set(self._replicas()) | {self._replica}
        return max(sorted(replicas), key=lambda each: _weight(each, key)) == self._replica

    async def _written(self, attempt: JobAttempt, now: float) -> bool:
        """Return True once a summary is stored, by any server."""
        if await self._summaries.is_there(attempt):
            self.counts.elsewhere_total += 1
            return True
        try:
            summary = await self._meter.whole(attempt)
        except StoreSilent as error:
            self.counts.silent_total += 1
            _log.info("summary of %s: %s", attempt.allocation.ref, error)
            return False
        ended = attempt.attempt.ended
        assert ended is not None
        complete = summary.covered is not None and summary.covered >= LEAST_COVERED
        if not complete and now < ended.timestamp() + LATEST_S:
            return False
        if await self._summaries.keep(attempt, summary):
            self.counts.written_total += 1
        else:
            self.counts.elsewhere_total += 1
        return True

    def _forget(self, now: float) -> None:
        oldest = now - 2 * REMEMBERED.total_seconds()
        for key in [each for each, at in self._done.items() if at < oldest]:
            del self._done[key]
        for key, (_, attempt) in tuple(self._due.items()):
            ended = attempt.attempt.ended
            if ended is not None and ended.timestamp() < oldest:
                del self._due[key]


def _weight(replica: str, key: str) -> bytes:
    return hashlib.sha256(f"{replica}\0{key}".encode()).digest()
