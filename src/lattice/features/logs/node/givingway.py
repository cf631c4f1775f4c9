"""A thread that reads a flood nobody watches takes a lower place on the processors.

Lines of most jobs cost next to nothing, and someone may wait for them. A job that writes without
end costs a tenth of a core at 1 GB a minute: where jobs want that core, they come first, and the
flood waits in its file. A place once given up can't be had back without rights, so it is for the
rest of the thread's life.
"""

from __future__ import annotations

import os
from collections.abc import Callable

FLOOD_BYTES = 64 * 1024 * 1024
WINDOW_MS = 10_000
LOWER = 10
"""Of `nice`: a ninth of the share of a thread of a job, on a core that both want."""


class GivingWay:
    """Asked by one thread, about itself."""

    def __init__(self, lower: Callable[[int], object] = os.nice) -> None:
        self._lower = lower
        self._since_ms = 0
        self._bytes = 0
        self.lowered = False

    def took(self, size_bytes: int, now_ms: int) -> None:
        """So much was read, and nobody watches."""
        if self.lowered:
            return
        if not 0 <= now_ms - self._since_ms < WINDOW_MS:
            self._since_ms, self._bytes = now_ms, 0
        self._bytes += size_bytes
        if self._bytes > FLOOD_BYTES:
            self.lowered = True
            self._lower(LOWER)
