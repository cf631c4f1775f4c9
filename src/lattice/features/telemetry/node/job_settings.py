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
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert.told import ToldJobs, told_of
from lattice.features.telemetry.node.stamps import KnownStamps
from lattice.wire.v1 import telemetry_pb2 as pb

_log = logging.getLogger(__name__)

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

FollowTold = Callable[[], AsyncIterator[pb.JobsTold]]
"""Yields all settings at first and at every change. Raises `LatticeError`."""


class JobSettings:
    """The settings as last received."""

    def __init__(
        self,
        follow: FollowTold,
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
        self._told: ToldJobs | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when the settings have changed."""
        self.stamps = KnownStamps()
        self.trouble = ""

    def mode_of(self, job_id: int) -> Mode:
        """Return the mode that is in force now."""
        told = self._told
        if told is None:
            return Mode.PROD
        mode, until = told.modes.get(job_id, (told.usual, None))
        return told.usual if until is not None and until <= self._now() else mode

    def interval_s(self, job_id: int) -> float:
        return self.mode_of(job_id).interval_s

    def gpus_of(self, job_id: int) -> tuple[int, ...] | None:
        """Return Slurm's numbers of the job's GPUs here; () for no GPU, None if unknown."""
        if self._told is None:
            return None
        told = self._told.gpus.get(job_id)
        return () if told is None else told or None

    async def run(self) -> None:
        """Follow the settings until cancelled."""
        failures = 0
        while True:
            try:
                async for message in self._follow():
                    failures = 0
                    self._take(told_of(message))
                trouble = "the stream has ended"
            except LatticeError as error:
                trouble = error.message
            if trouble != self.trouble:
                _log.warning("not told of jobs: %s", trouble)
            self.trouble = trouble
            pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            await self._sleep(pause_s * (0.75 + self._share / 2))
            failures += 1

    def _take(self, told: ToldJobs) -> None:
        if self.trouble:
            _log.info("told of jobs again")
            self.trouble = ""
        self.stamps.note(told)
        if told != self._told:
            self._told = told
            self.on_change()
