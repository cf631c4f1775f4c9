"""`OpeningTurns`: how many connections to nodes are opened at a time.

All nodes of a large job at once would delay each other, until each is given up and tried again. A
turn ends when the connection is open. While openings are quick, more are begun at a time. Slow ones
make them fewer, and each is followed by a rest of the same length. So a slow machine gets no more
work than it can finish, and has time for everything else.

A silent node loses its turn after a multiple of the time that others take at present.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

_FEWEST, _FIRST, _MOST = 4, 16, 64
"""Openings at a time: at least, at the start, and at most."""
_QUICK_S = 0.5
_MORE, _LESS = 0.5, 0.9
"""What a quick opening adds, and what a slow one leaves."""
_LEAST_S, _LONGEST_S = 1.0, 10.0
"""How long a silent node holds its turn."""
_MULTIPLE = 4.0
_FORGETS = 0.9
"""How much of a slow opening still counts after the next one."""


class OpeningTurns:
    """Turns for the nodes of all attempts that one feature follows."""

    def __init__(self, first: int = _FIRST, monotonic: Callable[[], float] | None = None) -> None:
        """`first`: turns at the start. `monotonic`: the clock; that of the running loop if None."""
        self._limit = float(first)
        self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._monotonic = monotonic
        self._usual_s = 0.0

    @property
    def at_a_time(self) -> int:
        """How many may be opened at a time at present."""
        return int(self._limit)

    @property
    def patience_s(self) -> float:
        """How long a node holds its turn at most."""
        return min(max(_LEAST_S, _MULTIPLE * self._usual_s), _LONGEST_S)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and open a connection in this context."""
        loop = asyncio.get_running_loop()
        now_s = self._monotonic or loop.time
        await self._take()
        begun_s = now_s()
        with ExitStack() as stack:
            stack.callback(self._give_back)
            timer = loop.call_later(self.patience_s, stack.close)
            try:
                yield
            finally:
                timer.cancel()
            took_s = now_s() - begun_s
            self._learn(took_s)
            if took_s > _QUICK_S:
                loop.call_later(min(took_s, _LONGEST_S), stack.pop_all().close)

    async def _take(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        self._hand_out()
        try:
            await ready
        except asyncio.CancelledError:
            if not ready.cancelled():
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._held -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._held < self.at_a_time:
            ready = self._waiting.popleft()
            if not ready.done():
                self._held += 1
                ready.set_result(None)

    def _learn(self, took_s: float) -> None:
        self._usual_s = max(took_s, _FORGETS * self._usual_s)
        limit = self._limit + _MORE if took_s <= _QUICK_S else self._limit * _LESS
        self._limit = min(max(_FEWEST, limit), _MOST)
