"""Finds jobs that ran while this agent did not watch: stopped, starved, killed or not started.

After each absence the server lists the jobs that ended here meanwhile, from Slurm and its
accounting. The time of a mark on disk says up to when nothing is missing. So an agent that is
killed before the answer asks again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.nodejobs import WatchPause
from lattice.features.logs.node.intake import Intake, PastJob, PastJobs
from lattice.features.logs.node.unread import UnreadJobs

_log = logging.getLogger(__name__)

MARK = "alive"
_ROUNDS_S = (0.0, 5.0, 25.0)
"""Pauses before each request: the server may not know jobs of the last seconds yet."""
_RETRY_S = (0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
_MOST_INCOMPLETE = 60
"""About an hour: a site may have no accounting."""
_MARK_S = 10.0
_LONGEST_AWAY_S = 24 * 3600.0
_FIRST_S = 3600.0
"""How far back an agent without a mark asks."""
_EARLIER_S = 5.0
"""An end may be earlier by Slurm's clock than by the node's."""


class MissedOutput(Protocol):
    """The source of absences."""

    async def missed(self) -> WatchPause:
        """Wait for the next absence."""
        ...


class MissedJobs:
    """Requests them. `take` gets the jobs, and may get one more than once."""

    def __init__(
        self,
        folder: Path,
        intake: Intake,
        jobs: MissedOutput,
        clock: Clock,
        unread: UnreadJobs,
        *,
        take: Callable[[tuple[PastJob, ...]], None],
        unfinished_since: Callable[[], float | None],
    ) -> None:
        """`unfinished_since`: when the oldest job without data on this disk ended."""
        self._mark = folder / MARK
        self._intake = intake
        self._jobs = jobs
        self._clock = clock
        self._unread = unread
        self._take = take
        self._unfinished_since = unfinished_since
        self._asked_again: float | None = None
        self._wanted = asyncio.Event()

    def ask_since(self, moment: float) -> None:
        """Also ask about this time: Slurm had no job at the start that the agent saw."""
        earlier = self._asked_again
        self._asked_again = moment if earlier is None else min(earlier, moment)
        self._wanted.set()

    async def run(self) -> None:
        """Run until cancelled."""
        absence = self._before_start()
        if absence is not None:
            self._unread.add_absence(absence)
            await self._ask(absence.since)
        else:
            await self._ask(self._now() - _FIRST_S)
        while True:
            self._set_mark()
            since = await self._next_within(_MARK_S)
            if since is not None:
                await self._ask(since)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _before_start(self) -> WatchPause | None:
        """From the mark until now; None without a mark."""
        now = self._now()
        try:
            since = self._mark.stat().st_mtime
        except OSError:
            return None
        return WatchPause(min(now, max(since, now - _LONGEST_AWAY_S)), now)

    async def _next_within(self, seconds: float) -> float | None:
        """Wait for an absence; returns since when to ask, or None after `seconds`."""
        missed = asyncio.ensure_future(self._jobs.missed())
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait(
                (missed, wanted), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            missed.cancel()
            wanted.cancel()
        moments: list[float] = []
        if missed.done() and not missed.cancelled():
            absence = missed.result()
            self._unread.add_absence(absence)
            moments.append(absence.since)
        if self._asked_again is not None:
            moments.append(self._asked_again)
            self._asked_again = None
            self._wanted.clear()
        return min(moments, default=None)

    async def _ask(self, since: float) -> None:
        for pause_s in _ROUNDS_S:
            await asyncio.sleep(pause_s)
            incomplete = 0
            for failures in itertools.count():
                found = await self._answer(since - _EARLIER_S)
                incomplete += found is not None
                if found is not None and (found.complete or incomplete > _MOST_INCOMPLETE):
                    break
                await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])

    async def _answer(self, since: float) -> PastJobs | None:
        """Take the jobs that the server lists; None if it does not answer."""
        try:
            found = await self._intake.past_jobs(since)
        except LatticeError as error:
            _log.info("which jobs ran here meanwhile is not known yet: %s", error.message)
            return None
        self._take(found.jobs)
        return found

    def _set_mark(self) -> None:
        """Record that nothing is missing up to now, except jobs without data on this disk."""
        now = self._now()
        until = self._unfinished_since()
        moment = now if until is None else min(now, until)
        with suppress(OSError):
            self._mark.touch()
            os.utime(self._mark, (moment, moment))
