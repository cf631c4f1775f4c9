"""The health of this node's GPUs, checked every 30 s, whether a job uses them or not.

A driver can hang forever. So each check runs in a daemon thread that does not delay the agent's
end. While a check hangs, the node's health is "the driver of the GPUs does not answer".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lattice.base.clock import Clock
from lattice.base.driver_reads import DriverReads
from lattice.base.errors import Unavailable
from lattice.domain.node import NOT_LOOKED, NodeHealth
from lattice.probes.gpuhealth import GpuHealthJudge, GpuReading

_log = logging.getLogger(__name__)

EVERY_S = 30.0
PATIENCE_S = 20.0
SILENT = "the driver of the GPUs does not answer"


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

    def served_cards(self) -> frozenset[str]:
        """The UUIDs of the cards that answered the last reading."""
        cards = self.last.cards if self.last is not None else ()
        return frozenset(each.uuid for each in cards if each.uuid and not each.lost)

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
