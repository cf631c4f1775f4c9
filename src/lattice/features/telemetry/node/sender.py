"""Sends samples to the servers: one batch at a time, oldest first, until it is confirmed.

A batch is sent soon after its sampling time, but not at the same time by every node. An unconfirmed
batch is sent again: the store keeps one of two equal samples.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from lattice.base.errors import (
    DataUnavailable,
    LatticeError,
    NotFound,
    RateLimited,
    UsageError,
)
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import StoredBatch
from lattice.features.telemetry.node.buffer import SampleBuffer, SampleRow
from lattice.features.telemetry.node.row_messages import OutgoingRows

_log = logging.getLogger(__name__)

BATCH_BYTES = 160 * 1024
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_LONGEST_PAUSE_S = 60.0
_LINGER_S = 5.0
"""The time over which nodes spread their batches."""
_POLL_S = 1.0
"""The pause if no waiting row goes this way."""
_FOR_GOOD = (UsageError, NotFound, DataUnavailable)
"""Errors that a retry would not change."""


class SampleSender(Protocol):
    """A connected replica, or the metric store itself."""

    async def store(self, outgoing: OutgoingRows) -> StoredBatch:
        """Return when the metric store has them. Raises `LatticeError`.

        After an error it may have some of them.
        """


class Sending:
    """Empties the buffer."""

    def __init__(
        self,
        buffer: SampleBuffer,
        intake: SampleSender,
        began: Callable[[JobIdentity], float],
        *,
        route: str = "over servers",
        share: float = 0.0,
        interval_s: Callable[[], float] = lambda: 30.0,
        wanted: Callable[[SampleRow], bool] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`share` is this node's jitter, 0 to 1.

        `began` returns a job's start by the servers' clock. `route` names this route in the log.
        `interval_s` returns the shortest sampling interval at present. `wanted` selects the rows
        for this route; None selects all.
        """
        self.route = route
        self._buffer = buffer
        self._intake = intake
        self._began = began
        self._share = share
        self._interval_s = interval_s
        self._wanted = wanted
        self._sleep = sleep
        self.trouble = ""
        """Why samples wait; empty if they don't."""
        self.stored_total = 0
        self.refused_total = 0
        """Samples that servers refused for good."""
        self._refusal = ""

    async def run(self) -> None:
        """Send until cancelled."""
        failures = 0
        behind = False
        while True:
            await self._buffer.some()
            if not behind:
                await self._sleep(self._share * min(_LINGER_S, self._interval_s()))
            try:
                sent = await self._send_oldest()
            except LatticeError as error:
                self._note_trouble(error.message)
                await self._sleep(self._pause_s(error, failures))
                behind, failures = True, failures + 1
            else:
                if sent:
                    self._note_trouble("")
                else:
                    await self._sleep(_POLL_S)
                behind, failures = sent and len(self._buffer) > 0, 0

    async def _send_oldest(self) -> bool:
        """Send the oldest rows; return False if none goes this way."""
        rows = self._buffer.take(BATCH_BYTES, self._wanted)
        if not rows:
            return False
        count = sum(len(row.values) for row in rows)
        try:
            result = await self._intake.store(
                OutgoingRows(rows, self._began, self._buffer.lost_total)
            )
        except _FOR_GOOD as error:
            self._refused(count, error.message)
            return True
        except BaseException:
            # On cancellation too: it is unknown whether the batch was stored.
            self._buffer.give_back(rows)
            raise
        self.stored_total += result.stored
        if result.refused:
            self._refused(result.refused, result.reason)
        return True

    def _refused(self, count: int, reason: str) -> None:
        self.refused_total += count
        if reason == self._refusal:
            return
        self._refusal = reason
        extra = {"way": self.route, "count": count, "reason": reason}
        _log.warning("samples refused for good", extra=extra)

    def _note_trouble(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.warning("samples wait: %s", trouble, extra={"way": self.route})
        elif self.trouble and not trouble:
            _log.info("samples are stored again", extra={"way": self.route})
        self.trouble = trouble

    def _pause_s(self, error: LatticeError, failures: int) -> float:
        pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
        if isinstance(error, RateLimited) and error.retry_after_s is not None:
            pause_s = max(pause_s, min(_LONGEST_PAUSE_S, error.retry_after_s))
        return pause_s * (0.75 + self._share / 2)
