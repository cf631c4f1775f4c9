"""The indexes of chunks: read from the ends of objects, and kept as long as there is room.

Objects never change once written, so what was read stays true.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from lattice.base.heavy import in_few_threads
from lattice.domain.logchunk import BadChunk, ChunkIndex, index_size, read_index
from lattice.domain.objects import NoObject, ObjectInfo, ObjectStore
from lattice.features.logs.service.seal import index_digest

_AT_ONCE = 16
_TAIL_BYTES = 4 * 1024
"""Holds the index of a chunk with 8 MiB of usual frames; a larger one costs a second read."""
_MOST_NUMBERS = 2_000_000
"""In the indexes that are kept; some 80 MB."""


class Indexes:
    """Those used last are kept."""

    def __init__(self, objects: ObjectStore, most_numbers: int = _MOST_NUMBERS) -> None:
        self._objects = objects
        self._most_numbers = most_numbers
        self._kept: OrderedDict[str, tuple[ChunkIndex, str] | None] = OrderedDict()
        self._numbers = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def of(self, info: ObjectInfo) -> ChunkIndex | None:
        """None for what is no chunk. Raises `Unavailable`."""
        found = await self.read(info)
        return found[0] if found else None

    async def read(self, info: ObjectInfo) -> tuple[ChunkIndex, str] | None:
        """The index and its own SHA-256; None for what is no chunk. Raises `Unavailable`."""
        if info.key in self._kept:
            self._kept.move_to_end(info.key)
            return self._kept[info.key]
        found = None
        async with self._turns:
            try:
                tail, size = await self._objects.read_end(info.key, _TAIL_BYTES)
                if index_size(tail) > len(tail):
                    tail, size = await self._objects.read_end(info.key, index_size(tail))
                found = await in_few_threads(_both, tail, size)
            except (BadChunk, NoObject):
                # Not ours, or being removed: what is no chunk is not shown as one.
                pass
        self._keep(info.key, found)
        return found

    def _keep(self, key: str, found: tuple[ChunkIndex, str] | None) -> None:
        if key not in self._kept:
            self._kept[key] = found
            self._numbers += _numbers(found)
        while self._numbers > self._most_numbers and len(self._kept) > 1:
            self._numbers -= _numbers(self._kept.popitem(last=False)[1])


def _numbers(found: tuple[ChunkIndex, str] | None) -> int:
    """How much of an index there is to keep."""
    return 8 if found is None else 8 + sum(4 + len(each.marks) for each in found[0].frames)


def _both(tail: bytes, size: int) -> tuple[ChunkIndex, str]:
    """In a thread: an index may have a megabyte. Raises `BadChunk`."""
    return read_index(tail, size), index_digest(tail)
