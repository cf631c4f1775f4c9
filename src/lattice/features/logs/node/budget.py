"""The limit of a node's spools."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from lattice.features.logs.node.spool import StreamSpool

_EVERY_S = 1.0
_RESERVE_BYTES = 256 * 1024 * 1024
"""Free space to keep on the disk."""


class Budget:
    """Counted once a second; between two counts a job can add what it writes in a second."""

    def __init__(
        self, folder: Path, most_bytes: int, spools: Callable[[], Iterable[StreamSpool]]
    ) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._spools = spools
        self.used_bytes = 0
        self.full = False

    def room(self) -> bool:
        """True while more may be kept."""
        return not self.full

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if spools := tuple(self._spools()):
                self.used_bytes, free = await asyncio.to_thread(self._look, spools)
                self.full = self.used_bytes >= self._most_bytes or free < _RESERVE_BYTES
            else:
                self.used_bytes = 0
            await asyncio.sleep(_EVERY_S)

    def _look(self, spools: Iterable[StreamSpool]) -> tuple[int, int]:
        """The size of the spools, and the free space of the disk."""
        disk = os.statvfs(self._folder)
        return sum(map(_size, spools)), disk.f_bavail * disk.f_frsize


def _size(spool: StreamSpool) -> int:
    try:
        return spool.size_bytes
    except OSError:
        return 0
