"""Asks the stores and etcd in the background: health is public, so a call of it costs nothing.

Its answers have no address and no text of an engine, because anybody may read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.metricstore import BadQuery, MetricStore, StoreSilent
from lattice.domain.objects import NoObject, ObjectStore, key_of
from lattice.features.health.model import EngineHealth

Members = Callable[[], Awaitable[tuple[int, int] | None]]
"""Returns how many members of etcd answer and how many do not; None without etcd."""
EVERY_S = 15.0
_WITHIN_S = 3.0
_NONE = EngineHealth(state="none", reason="not configured")
_NOT_YET = EngineHealth(state="away", reason="has not answered yet")
_SILENT = EngineHealth(state="away", reason="does not answer")
_OK = EngineHealth(state="ok")


class EngineWatch:
    """The last answers of the metric store and the object store."""

    def __init__(
        self,
        metrics: MetricStore | None,
        objects: ObjectStore | None,
        clock: Clock,
        *,
        members: Members | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._metrics = metrics
        self._objects = objects
        self._clock = clock
        self._members = members
        self._sleep = sleep
        self._answered_at_s: dict[str, float] = {}
        self.metrics = _NONE if metrics is None else _NOT_YET
        self.objects = _NONE if objects is None else _NOT_YET
        self.members: tuple[int, int] | None = None
        """How many members of etcd answered, and how many did not."""

    def age_s(self, engine: str) -> float | None:
        """Age of the newest answer of `metric_store` or `object_store`; None before the first."""
        at_s = self._answered_at_s.get(engine)
        return None if at_s is None else self._clock.monotonic() - at_s

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask()
            await self._sleep(EVERY_S)

    async def ask(self) -> None:
        """Ask all at the same time, each with a deadline."""
        self.metrics, self.objects, self.members = await asyncio.gather(
            self._of_metrics(), self._of_objects(), self._of_members()
        )
        for engine, found in (("metric_store", self.metrics), ("object_store", self.objects)):
            if found is _OK:
                self._answered_at_s[engine] = self._clock.monotonic()

    async def _of_members(self) -> tuple[int, int] | None:
        if self._members is None:
            return None
        try:
            async with asyncio.timeout(2 * _WITHIN_S):
                return await self._members()
        except (TimeoutError, LatticeError):
            return None

    async def _of_metrics(self) -> EngineHealth:
        if self._metrics is None:
            return _NONE
        now_s = self._clock.now().timestamp()
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._metrics.query("vector(1)", at=now_s, within_s=_WITHIN_S)
        except (TimeoutError, StoreSilent, BadQuery):
            return _SILENT
        return _OK

    async def _of_objects(self) -> EngineHealth:
        if self._objects is None:
            return _NONE
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._objects.read(key_of("doctor", "health"))
        except NoObject:
            return _OK
        except (TimeoutError, LatticeError, OSError):
            return _SILENT
        return _OK
