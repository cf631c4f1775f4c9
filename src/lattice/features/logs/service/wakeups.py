"""When a follower reads again: as soon as something came, and at least once a second."""

from __future__ import annotations

import asyncio

_ROUND_S = 1.0
_SETTLE_S = 0.05
"""Lines of several nodes within this time are put in the order of time."""
_GATHER_S = 0.01
"""In a flood, the pause to gather more."""


class Rounds:
    """One timer serves many changes."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timed_out = False

    def changed(self) -> None:
        """Note that there is something to read."""
        self._changed.set()

    async def next(self, *, many: bool, gather: bool) -> None:
        """Wait for the next round. `many` nodes settle; with `gather` more may come meanwhile."""
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() <= loop.time():
            self._timer = loop.call_later(_ROUND_S, self._time_out)
        self._timed_out = False
        await self._changed.wait()
        if not self._timed_out:
            pause_s = _SETTLE_S if many else _GATHER_S if gather else 0.0
            if pause_s:
                await asyncio.sleep(pause_s)
        self._changed.clear()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _time_out(self) -> None:
        self._timed_out = not self._changed.is_set()
        self._changed.set()
