"""`OpeningTurns`: how many connections to nodes are opened at a time.

All nodes of a large job at once would delay each other, until each is given up and tried again. A
turn ends when the connection is open. A silent node loses it after a multiple of the time that
others take at present. So a machine that is slow is given more time, and not more work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

_MOST = 64
_LEAST_S, _LONGEST_S = 1.0, 10.0
"""How long a silent node holds its turn."""
_MULTIPLE = 4.0
_FORGETS = 0.9
"""How much of a slow opening still counts after the next one."""


class OpeningTurns:
    """Turns for the nodes of all attempts that one feature follows."""

    def __init__(self, most: int = _MOST, monotonic: Callable[[], float] | None = None) -> None:
        """`monotonic`: the clock; that of the running loop if None."""
        self._turns = asyncio.Semaphore(most)
        self._monotonic = monotonic
        self._usual_s = 0.0

    @property
    def patience_s(self) -> float:
        """How long a node holds its turn at most."""
        return min(max(_LEAST_S, _MULTIPLE * self._usual_s), _LONGEST_S)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and open a connection in this context."""
        loop = asyncio.get_running_loop()
        now_s = self._monotonic or loop.time
        await self._turns.acquire()
        begun_s = now_s()
        with ExitStack() as stack:
            stack.callback(self._turns.release)
            timer = loop.call_later(self.patience_s, stack.close)
            try:
                yield
                self._usual_s = max(now_s() - begun_s, _FORGETS * self._usual_s)
            finally:
                timer.cancel()
