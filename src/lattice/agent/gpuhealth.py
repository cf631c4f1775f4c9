"""The health of this node's GPUs, checked every 30 s, whether a job uses them or not.

A driver can hang forever. So each check runs in a daemon thread that does not delay the agent's
end. While a check hangs, the node's health is "the NVIDIA driver does not answer".
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from lattice.base.clock import Clock
from lattice.domain.node import NOT_LOOKED, NodeHealth
from lattice.probes.gpuhealth import GpuHealthJudge, GpuLook

_log = logging.getLogger(__name__)

EVERY_S = 30.0
PATIENCE_S = 20.0
SILENT = "the NVIDIA driver does not answer"


class GpuHealthWatch:
    """`current` is the last verdict."""

    def __init__(
        self,
        look: Callable[[], GpuLook],
        judge: GpuHealthJudge,
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`look` blocks."""
        self._look = look
        self._judge = judge
        self._clock = clock
        self._patience_s = patience_s
        self._sleep = sleep
        self._under_way: asyncio.Future[GpuLook] | None = None
        self._health = NOT_LOOKED
        self.last: GpuLook | None = None
        """The newest reading; None: there was none yet."""

    def current(self) -> NodeHealth:
        return self._health

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.last = await self.looked()
            health = self._judge.see(self.last)
            if health != self._health:
                words = "; ".join(health.words)
                _log.info("GPUs: %s%s", health.health.value, f": {words}" if words else "")
            self._health = health
            await self._sleep(EVERY_S)

    async def looked(self) -> GpuLook:
        """The next reading, or a failure if the last one is not finished."""
        if self._under_way is None:
            self._under_way = self._begin()
        done, _ = await asyncio.wait((self._under_way,), timeout=self._patience_s)
        if not done:
            return GpuLook(time=self._clock.now().timestamp(), failure=SILENT)
        look, self._under_way = self._under_way.result(), None
        return look

    def _begin(self) -> asyncio.Future[GpuLook]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GpuLook] = loop.create_future()

        def tell(look: GpuLook) -> None:
            if not future.done():
                future.set_result(look)

        def work() -> None:
            try:
                look = self._look()
            except Exception as error:  # noqa: BLE001 - a failed binding is a reading
                now = self._clock.now().timestamp()
                look = GpuLook(time=now, failure=f"{type(error).__name__}: {error}")
            try:
                loop.call_soon_threadsafe(tell, look)
            except RuntimeError:
                return  # the agent has ended meanwhile

        threading.Thread(target=work, name="gpu health", daemon=True).start()
        return future
