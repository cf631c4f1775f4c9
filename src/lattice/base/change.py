"""Something that changes now and then, and wakes those who wait for the next change."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """For one event loop. A waiter costs nothing until there is a change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def next(self) -> asyncio.Future[None]:
        """Done at the next change. Whoever no longer waits cancels it."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        return waiting

    def fire(self) -> None:
        """There is a change now."""
        for each in tuple(self._waiting):
            if not each.done():
                each.set_result(None)
