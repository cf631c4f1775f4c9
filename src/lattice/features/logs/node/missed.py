"""Finds jobs that ran while this agent did not watch: stopped, starved, killed or not started.

After each absence the server lists the jobs that ended here meanwhile, from Slurm and its
accounting. The time of a mark on disk says up to when nothing is missing. So an agent that is
killed before the answer asks again.

Absences, and jobs without a stream, are on disk: a query for such a job gets the reason. The file
is bounded: the oldest entries are dropped. If the disk is full, entries since the last write are
lost at a restart.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.nodejobs import CLOCK_SLACK_S, WatchPause
from lattice.features.logs.node.durable import replace
from lattice.features.logs.node.intake import Intake, PastJob, PastJobs

_log = logging.getLogger(__name__)

_MOST_ABSENCES = 200
_MOST_JOBS = 1000
_LONGEST_REASON = 300
_SAME_ABSENCE_S = 10.0
"""Absences closer than this are one: a starved agent has many short ones."""
NOT_SEEN = "the agent watched the node and has no record of a process of the job"


class UnreadJob(msgspec.Struct, frozen=True):
    """An ended job without a stream. An empty reason means that it had no file on this node."""

    job_id: int
    started: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A job that this node does not follow; `over` if it followed it to the end."""

    reason: str = ""
    over: bool = False


class _Contents(msgspec.Struct):
    watched_since: float
    absences: list[WatchPause] = []
    jobs: list[UnreadJob] = []


class UnreadJobs:
    """The absences and jobs. All times are the node's own."""

    def __init__(self, file: Path, now: float) -> None:
        """`now` counts as the beginning if nothing is on disk."""
        self._file = file
        try:
            self._contents = msgspec.json.decode(file.read_bytes(), type=_Contents)
        except (OSError, msgspec.MsgspecError):
            self._contents = _Contents(now)

    def add_absence(self, absence: WatchPause) -> None:
        """Add a period without a running agent."""
        known = self._contents.absences
        if known and 0 <= absence.since - known[-1].until < _SAME_ABSENCE_S:
            absence = known.pop().with_(absence)
        known.append(absence)
        del known[:-_MOST_ABSENCES]
        self._write()

    def add_job(self, job_id: int, started: float, reason: str) -> None:
        """Add a job that is over and has no stream."""
        jobs = self._contents.jobs
        jobs.append(UnreadJob(job_id, started, reason[:_LONGEST_REASON]))
        del jobs[:-_MOST_JOBS]
        self._write()

    def of(self, job_id: int, began: float, ended: float, ahead_s: float = 0.0) -> Unfollowed:
        """What is known of a job that is over and not followed.

        The times are the servers'; the node's clock is ahead of theirs by `ahead_s`.
        """
        began, ended = began + ahead_s, ended + ahead_s
        for job in reversed(self._contents.jobs):
            if job.job_id == job_id and _is_within(job.started, began, ended):
                return Unfollowed(job.reason, over=True)
        since = self._contents.watched_since
        if ended < since:
            return Unfollowed(f"no agent watched the node before {_time(since - ahead_s)}")
        for each in reversed(self._contents.absences):
            if each.meets(began, ended):
                return Unfollowed(
                    f"the agent was away from {_time(each.since - ahead_s)} "
                    f"to {_time(each.until - ahead_s)}"
                )
        return Unfollowed(NOT_SEEN)

    def _write(self) -> None:
        try:
            replace(self._file, msgspec.json.encode(self._contents))
        except OSError as error:
            _log.warning("%s is not written: %s", self._file, error.strerror)


def _is_within(started: float, began: float, ended: float) -> bool:
    return began - CLOCK_SLACK_S <= started <= ended + CLOCK_SLACK_S


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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


class MissedJobs:
    """Requests them. `take` gets the jobs, and may get one more than once."""

    def __init__(
        self,
        folder: Path,
        intake: Intake,
        next_absence: Callable[[], Awaitable[WatchPause]],
        clock: Clock,
        unread: UnreadJobs,
        *,
        take: Callable[[tuple[PastJob, ...]], None],
        unfinished_since: Callable[[], float | None],
    ) -> None:
        """`unfinished_since`: when the oldest job without data on this disk ended."""
        self._mark = folder / MARK
        self._intake = intake
        self._next_absence = next_absence
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
        missed = asyncio.ensure_future(self._next_absence())
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
