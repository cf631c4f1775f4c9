"""Runs blocking calls in threads, with a descriptor that signals their end.

For loops around `select`, which continue while a connection is made or a token is fetched.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class BackgroundCalls:
    """An errand returns a function, which the owner's thread calls when the errand is done."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._done: deque[Callable[[], None]] = deque()
        self._running = 0
        self._closed = False

    def fileno(self) -> int:
        """Readable when an errand is done."""
        return self._reads

    def send(self, errand: Callable[[], Callable[[], None]]) -> None:
        """Run it in its own thread. It must not raise."""
        from threading import Thread  # noqa: PLC0415 - most runs never need one

        def run() -> None:
            self._done.append(errand())
            if not self._closed:
                with suppress(OSError):
                    os.write(self._writes, b".")

        self._running += 1
        Thread(target=run, name="errand", daemon=True).start()

    def finish(self) -> None:
        """Call the functions that finished errands returned."""
        if not self._running:
            return
        with suppress(BlockingIOError):
            while os.read(self._reads, 64):
                pass
        while self._done:
            self._running -= 1
            self._done.popleft()()

    def close(self) -> None:
        """Close the pipe. Running errands are abandoned."""
        self._closed = True
        os.close(self._reads)
        os.close(self._writes)
