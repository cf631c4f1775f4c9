"""The servers' settings for this node's jobs: sampling modes and GPUs.

If the site lets its nodes write to the metric store, the settings also have the owners' labels.

They are followed over the link. While no server answers, the last settings stay in force, except
that a mode with an end still reverts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from lattice.base.errors import LatticeError
from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert.job_settings import NodeJobSettings, settings_of
from lattice.features.telemetry.convert.stamps import Stamps
from lattice.wire.v1 import telemetry_pb2 as pb

_log = logging.getLogger(__name__)

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
MAX_JOBS = 1024
"""Jobs, the most recent ones: their last samples are sent after their end."""

FollowSettings = Callable[[], AsyncIterator[pb.JobsTold]]
"""Yields all settings at first and at every change. Raises `LatticeError`."""


class KnownStamps:
    """The owners' labels of this node's jobs, including those of ended runs.

    A node sees a job and its start; which run that is, only Slurm can tell. So labels are valid
    for a job that had begun when Slurm's data was read. A later run, or another job with the same
    number, may not be in that data yet.
    """

    def __init__(self) -> None:
        self.stamping = False
        """True if the site's servers send labels, as last received."""
        self._jobs: dict[int, dict[float, tuple[Stamps, float]]] = {}
        """Runs by their start, with the newest time of Slurm's data."""

    def note(self, settings: NodeJobSettings) -> None:
        self.stamping = settings.stamping
        if not settings.stamping:
            self._jobs.clear()
        for job_id, run in settings.runs.items():
            runs = self._jobs.pop(job_id, {})
            # One of two servers may be behind; the newer data stays.
            before = runs[run.started][1] if run.started in runs else 0.0
            runs[run.started] = (run.stamps, max(settings.as_of, before))
            self._jobs[job_id] = runs
        while len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]

    def of(self, job_id: int, began: float) -> Stamps | None:
        """Return the labels of a job that began here at this server time, or None if unknown."""
        runs = self._jobs.get(job_id, {})
        possible = [
            started
            for started, (_, as_of) in runs.items()
            if started - CLOCK_SLACK_S <= began <= as_of
        ]
        return runs[max(possible)][0] if possible else None


class JobSettings:
    """The settings as last received."""

    def __init__(
        self,
        follow: FollowSettings,
        now: Callable[[], float],
        *,
        share: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`now` is the servers' time; `share` is this node's own value from 0 to 1, for jitter."""
        self._follow = follow
        self._now = now
        self._share = share
        self._sleep = sleep
        self._settings: NodeJobSettings | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when the settings have changed."""
        self.stamps = KnownStamps()
        self.trouble = ""

    def mode_of(self, job_id: int) -> Mode:
        """Return the mode that is in force now."""
        settings = self._settings
        if settings is None:
            return Mode.PROD
        mode, until = settings.modes.get(job_id, (settings.usual, None))
        return settings.usual if until is not None and until <= self._now() else mode

    def known_mode(self, job_id: int) -> str:
        """Return the name of the mode, or an empty text before the first settings."""
        return "" if self._settings is None else self.mode_of(job_id).value

    def interval_s(self, job_id: int) -> float:
        return self.mode_of(job_id).interval_s

    def gpus_of(self, job_id: int) -> tuple[int, ...] | None:
        """Return Slurm's numbers of the job's GPUs here; () for no GPU, None if unknown."""
        if self._settings is None:
            return None
        indices = self._settings.gpus.get(job_id)
        return () if indices is None else indices or None

    async def run(self) -> None:
        """Follow the settings until cancelled."""
        failures = 0
        while True:
            try:
                async for message in self._follow():
                    failures = 0
                    self._take(settings_of(message))
                trouble = "the stream has ended"
            except LatticeError as error:
                trouble = error.message
            if trouble != self.trouble:
                _log.warning("not told of jobs: %s", trouble)
            self.trouble = trouble
            pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            await self._sleep(pause_s * (0.75 + self._share / 2))
            failures += 1

    def _take(self, settings: NodeJobSettings) -> None:
        if self.trouble:
            _log.info("told of jobs again")
            self.trouble = ""
        self.stamps.note(settings)
        if settings != self._settings:
            self._settings = settings
            self.on_change()
