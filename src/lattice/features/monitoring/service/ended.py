"""Counts ended jobs once, over all servers and their restarts, in the agreed state.

Keys::

    ended/counts        how many ended, by user, project and final state, and since when
    ended/jobs/MINUTE   which ends of this minute are counted: 8 bytes of a digest each

slurmctld lists a job for some minutes after its end (MinJobAge). Each server looks for ends there
that no key has, and commits them with the counts. The commit expects the revisions that the server
has read, so of two servers only one counts an end. The keys of a minute are removed after an hour.

The invariant: **an end is in the counts if and only if its digest was committed with them.**
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.allocation import Allocation, State
from lattice.domain.allocation_index import AllocationIndex, ChangeCursor
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import (
    LARGEST_VALUE_BYTES,
    Change,
    Delete,
    Expect,
    Put,
    StateStore,
    StateView,
)
from lattice.features.monitoring.model import (
    BadCounts,
    EndedCounts,
    EndedRow,
    digests,
    end_digest,
    read_counts,
)
from lattice.features.monitoring.service.cluster import is_complete
from lattice.foundation.series import SeriesValue

_log = logging.getLogger(__name__)

ENDED = "ended/"
COUNTS = "ended/counts"
JOBS = "ended/jobs/"
EVERY_S = 15.0
WINDOW_S = 3600.0
_SLACK_MINUTES = 10
"""Clocks of servers differ."""
_MINUTES_AT_ONCE = 8
"""In one commit: at most half a megabyte."""
_REMOVED_AT_ONCE = 40
_FINISHED = tuple(state.value for state in State if state.finished)


class EndedJobs:
    """A background loop; `values` are read at each scrape."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: StateStore,
        view: StateView,
        clock: Clock,
        *,
        names: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`view` has the keys under `ENDED`. `names`: users and projects may be shown."""
        self._scheduler = scheduler
        self._store = store
        self._view = view
        self._clock = clock
        self._names = names
        self._sleep = sleep
        self._cursor = ChangeCursor()
        self._uncounted: dict[int, Allocation] = {}
        """Jobs that have ended and are not known to be counted, by identity."""
        self._revision = 0

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            # Servers that started together do not count at the same time.
            await self._sleep(EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.count()
            except LatticeError as error:
                _log.info("ended jobs: %s", error.message)
            except BadCounts as error:
                _log.warning("ended jobs: %s does not read, so none is counted: %s", COUNTS, error)

    def values(self) -> Iterator[SeriesValue]:
        """The agreed counts; none while the agreed state does not answer."""
        try:
            counts = self._counts() if self._view.source.ok else None
        except (Unavailable, BadCounts):
            return
        if counts is None:
            return
        outcomes = counts.by_outcome()
        for outcome in sorted({*_FINISHED, *outcomes}):
            yield SeriesValue("lattice_jobs_ended_total", outcomes[outcome], (outcome,))
        if self._names:
            for row, count in counts.rows.items():
                if row[:2] != ("", ""):
                    yield SeriesValue("lattice_user_jobs_ended_total", count, row)

    def _counts(self) -> EndedCounts | None:
        entry = self._view.get(COUNTS)
        return read_counts(entry.value) if entry else None

    async def count(self) -> bool:
        """Count the ends that are not counted yet. False if another server was faster."""
        try:
            reading = self._scheduler.live()
        except Unavailable:
            return True
        if not is_complete(reading) or not self._view.source.ok:
            return True
        now = self._clock.now().timestamp()
        counts = self._counts()
        if counts is None:
            begun = EndedCounts(now).encoded()
            done = await self._store.commit([Expect(COUNTS, 0)], [Put(COUNTS, begun)])
            return done is not None
        keys = self._view.entries
        fresh = self._fresh(reading.cluster.index, counts.since, now)
        changes: list[Change] = []
        for minute, ends in list(fresh.items())[:_MINUTES_AT_ONCE]:
            key = f"{JOBS}{minute}"
            value = keys[key].value if key in keys else b""
            for digest, row in ends.items():
                if len(value) + len(digest) > LARGEST_VALUE_BYTES:
                    break
                value += digest
                counts.add(row)
            changes.append(Put(key, value))
        if changes:
            changes.append(Put(COUNTS, counts.encoded()))
        changes += [Delete(key) for key in _old(keys, now)[:_REMOVED_AT_ONCE]]
        if not changes:
            return True
        read = {key: entry.revision for key, entry in keys.items()}
        expect = [Expect(each.key, read.get(each.key, 0)) for each in changes]
        return await self._store.commit(expect, changes) is not None

    def _fresh(
        self, index: AllocationIndex, since: float, now: float
    ) -> dict[int, dict[bytes, EndedRow]]:
        """The ends without a digest in the agreed state, by minute, the earliest first."""
        self._follow(index)
        earliest, known = max(since, now - WINDOW_S), _Known(self._view)
        found: dict[int, dict[bytes, EndedRow]] = {}
        for job in tuple(self._uncounted.values()):
            ended = job.ended.timestamp() if job.ended else 0.0
            minute, digest = int(ended // 60), end_digest(job)
            # Whole seconds: a job that ended in the second in which the count began counts.
            if ended < int(earliest) or digest in known.of(minute):
                del self._uncounted[id(job)]
            elif ended <= now + _SLACK_MINUTES * 60:
                found.setdefault(minute, {})[digest] = self._row(job)
        return dict(sorted(found.items()))

    def _follow(self, index: AllocationIndex) -> None:
        entry = self._view.get(COUNTS)
        revision = entry.revision if entry else 0
        if revision < self._revision:
            # A backup was restored: what was counted after it is to be counted again.
            self._cursor, self._uncounted = ChangeCursor(), {}
        self._revision = revision
        change = self._cursor.changes(index)
        for each in change.gone:
            self._uncounted.pop(id(each), None)
        ended = (each for each in change.added if each.state.finished and each.ended)
        self._uncounted.update((id(each), each) for each in ended)

    def _row(self, job: Allocation) -> EndedRow:
        user, project = (job.user, job.account) if self._names else ("", "")
        return user, project, job.state.value


class _Known:
    """The digests of each minute, read once."""

    def __init__(self, view: StateView) -> None:
        self._view = view
        self._sets: dict[int, frozenset[bytes]] = {}

    def of(self, minute: int) -> frozenset[bytes]:
        found = self._sets.get(minute)
        if found is None:
            entry = self._view.get(f"{JOBS}{minute}")
            found = self._sets[minute] = frozenset(digests(entry.value) if entry else ())
        return found


def _old(keys: Mapping[str, object], now: float) -> list[str]:
    """Keys of minutes whose jobs no server counts any more."""
    oldest = int((now - WINDOW_S) // 60) - _SLACK_MINUTES
    return [
        key
        for key in sorted(keys)
        if (minute := key.removeprefix(JOBS)) != key
        and minute.isascii()
        and minute.isdigit()
        and int(minute) < oldest
    ]
