"""Why this node has no output of a job: absences, and jobs without a stream. On disk.

The answer to a query for such a job has the reason. The file is bounded: the oldest entries are
dropped. If the disk is full, entries since the last write are lost at a restart.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lattice.domain.nodejobs import CLOCK_SLACK_S, WatchPause
from lattice.features.logs.node.durable import replace

_log = logging.getLogger(__name__)

_MOST_ABSENCES = 200
_MOST_JOBS = 1000
_LONGEST_REASON = 300
_SAME_ABSENCE_S = 10.0
"""Absences closer than this are one: a starved agent has many short ones."""
NOT_SEEN = "the agent watched the node and has no record of a process of the job"


class UnreadJob(msgspec.Struct, frozen=True):
    """A job that is over and has no stream. Without a reason it had no file here."""

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
