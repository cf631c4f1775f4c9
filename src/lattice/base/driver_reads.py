"""Calls to drivers, which may never return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

from lattice.base.errors import Unavailable

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
