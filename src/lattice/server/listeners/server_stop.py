"""Ends open streams as soon as the server stops, so that their readers go to another server."""

from __future__ import annotations

import asyncio

from lattice.base.errors import Unavailable
from lattice.wire.interceptor import NextChange


class ServerStop:
    """Wraps the signal that streams wait for; after `begin` it fails for all of them."""

    def __init__(self, next_change: NextChange) -> None:
        self._inner = next_change
        self._waiting: set[asyncio.Future[None]] = set()
        self._has_begun = False

    def next_change(self) -> asyncio.Future[None]:
        """A future like the wrapped one's, which fails with `Unavailable` once the server stops."""
        inner = self._inner()
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(change)

        def changed(_: asyncio.Future[None]) -> None:
            if not change.done():
                change.set_result(None)

        def over(_: asyncio.Future[None]) -> None:
            self._waiting.discard(change)
            inner.cancel()

        inner.add_done_callback(changed)
        change.add_done_callback(over)
        if self._has_begun:
            _fail(change)
        return change

    def begin(self) -> None:
        """End every stream that is open, and each that would still open."""
        self._has_begun = True
        for change in tuple(self._waiting):
            _fail(change)


def _fail(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_exception(
            Unavailable("This server is stopping.", hint="Try again, at another server if any.")
        )
        # A stream that ends by itself at this moment does not look at it.
        change.exception()
