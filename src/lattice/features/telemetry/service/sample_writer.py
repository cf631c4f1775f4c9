"""Merges samples of many nodes into few large writes; each caller waits for its own.

Callers bring encoded requests of remote write, which are joined by joining their bytes. The queue
is bounded; if it is full, nodes keep their samples. A write that the store refuses for good is
split, so that one bad series affects only itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.metricstore import MetricStore, StoreSilent, WriteRefused
from lattice.features.telemetry.convert.batches import StoredBatch
from lattice.wire.remotewrite import samples_in, series_in

_log = logging.getLogger(__name__)

MOST_WAITING = 200_000
"""Samples: about 10 seconds of what 10 000 nodes send."""
MOST_AT_ONCE = 10_000
LINGER_S = 0.15
"""How long a write waits for more to join it: half of a write's cost is the same for any size."""
_WRITERS = 4
_MOST_APART = 64
"""Most writes for the parts of a refused one."""


@dataclass(slots=True)
class WritingCounts:
    writes_total: int = 0
    write_failures_total: int = 0
    write_seconds_total: float = 0.0
    """Of the writes that the store accepted; divided by `writes_total` it is the mean."""


@dataclass(eq=False, slots=True)
class _Brought:
    """The samples of one call."""

    request: bytes
    samples: int
    done: asyncio.Future[StoredBatch]


class SampleWriting:
    """One queue in front of the store. `running` owns its writers."""

    def __init__(
        self,
        store: MetricStore,
        clock: Clock,
        *,
        most_waiting: int = MOST_WAITING,
        most_at_once: int = MOST_AT_ONCE,
        linger_s: float = LINGER_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._most_waiting = most_waiting
        self._most_at_once = most_at_once
        self._linger_s = linger_s
        self._queue: deque[_Brought] = deque()
        self._came = asyncio.Event()
        self._joining = asyncio.Lock()
        self.waiting = 0
        self.counts = WritingCounts()

    async def write(self, request: bytes, samples: int) -> StoredBatch:
        """Return when the store has them. On `Unavailable` it may have none, some or all.

        `request` is a `WriteRequest` with so many samples.
        """
        if self.waiting and self.waiting + samples > self._most_waiting:
            raise Unavailable(
                f"{self.waiting} samples wait for the metric store: no more are taken.",
                hint="Keep them and try again in some seconds.",
            )
        brought = _Brought(request, samples, asyncio.get_running_loop().create_future())
        self._queue.append(brought)
        self.waiting += samples
        self._came.set()
        return await brought.done

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """Write until the context ends; waiting callers then get `Unavailable`."""
        writers = (
            Loop(f"samples writer {number}", self._empty, OnFailure.RESTART)
            for number in range(_WRITERS)
        )
        try:
            async with supervisor.running(*writers):
                yield
        finally:
            while self._queue:
                _fail([self._next()], "this server is going away")

    async def _empty(self) -> None:
        while True:
            # One writer at a time waits for more to join; the others write meanwhile.
            async with self._joining:
                while not self._queue:
                    self._came.clear()
                    await self._came.wait()
                if self.waiting < self._most_at_once:
                    await asyncio.sleep(self._linger_s)
                parts = self._together()
            if not parts:
                continue
            try:
                await self._write(parts)
            except asyncio.CancelledError:
                _fail(parts, "this server is going away")
                raise
            except Exception:  # noqa: BLE001 - a defect must not end the writer
                _log.exception("samples: not foreseen")
                _fail(parts, "the server failed to write them")

    def _next(self) -> _Brought:
        brought = self._queue.popleft()
        self.waiting -= brought.samples
        return brought

    def _together(self) -> list[_Brought]:
        parts: list[_Brought] = []
        samples = 0
        while self._queue and (not parts or samples + self._queue[0].samples <= self._most_at_once):
            brought = self._next()
            # A caller that has left sends its samples again; writing them now would be twice.
            if not brought.done.done():
                parts.append(brought)
                samples += brought.samples
        return parts

    async def _write(self, parts: list[_Brought]) -> None:
        try:
            await self._written(b"".join([each.request for each in parts]))
        except StoreSilent as silence:
            _fail(parts, str(silence))
        except WriteRefused as refusal:
            if len(parts) > 1:
                for each in parts:
                    await self._write([each])
            else:
                await self._apart(parts[0], str(refusal))
        else:
            for each in parts:
                _finish(each, StoredBatch(each.samples))

    async def _apart(self, part: _Brought, reason: str) -> None:
        """Split by halves, down to the refused series."""
        stored = tries = 0
        series = tuple(series_in(part.request))
        open_: list[Sequence[bytes]] = [series] if len(series) > 1 else []
        while open_ and tries < _MOST_APART:
            half = open_.pop()
            middle = len(half) // 2
            for each in (half[:middle], half[middle:]):
                tries += 1
                try:
                    await self._written(b"".join(each))
                    stored += sum(map(samples_in, each))
                except WriteRefused as refusal:
                    reason = str(refusal)
                    if len(each) > 1:
                        open_.append(each)
                except StoreSilent as silence:
                    # A retry stores the same samples again, which changes nothing.
                    _fail([part], str(silence))
                    return
        _finish(part, StoredBatch(stored, part.samples - stored, f"the metric store: {reason}"))

    async def _written(self, request: bytes) -> None:
        began = self._clock.monotonic()
        try:
            await self._store.write_encoded(request)
        except (StoreSilent, WriteRefused):
            self.counts.write_failures_total += 1
            raise
        self.counts.writes_total += 1
        self.counts.write_seconds_total += self._clock.monotonic() - began


def _finish(brought: _Brought, taken: StoredBatch) -> None:
    if not brought.done.done():
        brought.done.set_result(taken)


def _fail(parts: Sequence[_Brought], why: str) -> None:
    for each in parts:
        if not each.done.done():
            each.done.set_exception(
                Unavailable(
                    f"The metric store does not take samples: {why}.",
                    hint="Keep them and try again.",
                )
            )
