"""The health of this node's GPUs, checked every 30 s, whether a job uses them or not.

A driver can hang forever. So each check runs in a daemon thread that does not delay the agent's
end. While a check hangs, the node's health is "the NVIDIA driver does not answer".
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.node import NOT_LOOKED, NodeHealth
from lattice.probes.gpuhealth import GpuHealthJudge, GpuReading

_log = logging.getLogger(__name__)

EVERY_S = 30.0
PATIENCE_S = 20.0
SILENT = "the NVIDIA driver does not answer"
_T = TypeVar("_T")


class DriverReads(Generic[_T]):
    """Calls a driver in a daemon thread, one call at a time: it may block its caller for ever."""

    def __init__(self, read: Callable[[], _T], name: str, patience_s: float, silent: str) -> None:
        """`read` blocks. `name` is that of the thread, `silent` the text of a missing answer."""
        self._read = read
        self._name = name
        self._patience_s = patience_s
        self._silent = silent
        self._pending: asyncio.Future[_T] | None = None

    async def __call__(self) -> _T:
        """The next reading. Raises `Unavailable`, or the exception of `read`."""
        if self._pending is None:
            self._pending = self._begin()
        pending = self._pending
        done, _ = await asyncio.wait((pending,), timeout=self._patience_s)
        if not done:
            raise Unavailable(self._silent)
        if self._pending is pending:
            self._pending = None
        return pending.result()

    def _begin(self) -> asyncio.Future[_T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def deliver(reading: _T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("_T", reading))

        def work() -> None:
            reading, failure = None, None
            try:
                reading = self._read()
            except Exception as error:  # noqa: BLE001 - it is passed to the caller
                failure = error
            with suppress(RuntimeError):  # the agent has ended meanwhile
                loop.call_soon_threadsafe(deliver, reading, failure)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future


class GpuHealthWatch:
    """`current` is the last verdict."""

    def __init__(
        self,
        read: Callable[[], GpuReading],
        judge: GpuHealthJudge,
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`read` blocks."""
        self._reads = DriverReads(read, "gpu health", patience_s, SILENT)
        self._judge = judge
        self._clock = clock
        self._sleep = sleep
        self._health = NOT_LOOKED
        self.last: GpuReading | None = None
        """The newest reading; None: there was none yet."""

    def current(self) -> NodeHealth:
        return self._health

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.last = await self._reading()
            health = self._judge.see(self.last)
            if health != self._health:
                faults = "; ".join(health.words)
                _log.info("GPUs: %s%s", health.health.value, f": {faults}" if faults else "")
            self._health = health
            await self._sleep(EVERY_S)

    async def _reading(self) -> GpuReading:
        """The next reading; a failed binding, or none in time, is a reading too."""
        try:
            return await self._reads()
        except Unavailable as error:
            failure = error.message
        except Exception as error:  # noqa: BLE001 - a failed binding is a reading
            failure = f"{type(error).__name__}: {error}"
        return GpuReading(time=self._clock.now().timestamp(), failure=failure)
