"""Ends the records of sessions that no server serves any more. Every server runs it.

A server ends the records of its own sessions. The sessions of a dead server either continue at
another, which the record then names, or their clients never came back. Each commit expects the
revision that was read, so two servers write one end.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.features.attach.model import RESUME_S, EndReason
from lattice.features.attach.service.records import Kept, SessionRecords

_log = logging.getLogger(__name__)

_EVERY_S = 20.0
_GRACE_S = 15.0
"""Added to `RESUME_S`: the server of a session writes first."""


class RecordCleanup:
    """Checks every open record about every 20 s."""

    def __init__(
        self,
        records: SessionRecords,
        clock: Clock,
        replicas: Callable[[], Collection[str]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`replicas` returns the ids of the servers that are up."""
        self._records = records
        self._clock = clock
        self._replicas = replicas
        self._sleep = sleep
        self._missed: dict[str, float] = {}
        """Sessions of dead servers, and when this server first saw that (monotonic)."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._sleep(_EVERY_S * (0.75 + 0.5 * random.random()))  # noqa: S311
            try:
                await self.tidy()
            except LatticeError as error:
                _log.info("attach records: %s", error.message)

    async def tidy(self) -> None:
        """Check every open record once."""
        records = await self._records.all_open()
        up = frozenset(self._replicas())
        missed, self._missed = self._missed, {}
        now_s = self._clock.monotonic()
        for record in records:
            if record.left is None and record.replica not in up:
                self._missed[record.session.id] = missed.get(record.session.id, now_s)
            if self._is_over(record, now_s):
                await self._records.end(record, EndReason.CLIENT_LOST)

    def _is_over(self, record: Kept, now_s: float) -> bool:
        patience_s = RESUME_S + _GRACE_S
        if record.left is not None:
            return self._clock.now() - record.left >= timedelta(seconds=patience_s)
        since_s = self._missed.get(record.session.id)
        return since_s is not None and now_s - since_s >= patience_s
