"""When certificates expire, read every half a minute in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from lattice.base.errors import LatticeError
from lattice.features.monitoring.model import Expiries
from lattice.foundation.series import SeriesValue

EVERY_S = 30.0
_WITHIN_S = 10.0


class ExpiryWatch:
    """A background loop; `values` are read at each scrape."""

    def __init__(
        self, expiries: Expiries, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._expiries = expiries
        self._sleep = sleep
        self._read: dict[str, float] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read()
            await self._sleep(EVERY_S)

    async def read(self) -> None:
        """Read each once. One that can't be read has no value."""
        for name, read in (
            ("people", self._expiries.people),
            ("authority", self._expiries.authority),
            ("agents", self._expiries.agents),
        ):
            expires = await _within(read)
            self._read.pop(name, None)
            if expires is not None:
                self._read[name] = expires

    def values(self) -> Iterator[SeriesValue]:
        for name, expires in self._read.items():
            yield SeriesValue("lattice_certificate_expiry_timestamp_seconds", expires, (name,))
        refused = self._expiries.refused()
        if refused is not None:
            yield SeriesValue("lattice_agents_refused", refused.revoked, ("revoked",))
            yield SeriesValue("lattice_agents_refused", refused.quarantine, ("quarantine",))


async def _within(read: Callable[[], Awaitable[float | None]]) -> float | None:
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await read()
    except (TimeoutError, OSError, LatticeError):
        return None
