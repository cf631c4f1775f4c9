"""A cache of chunk indexes, which are read from the ends of objects.

Objects never change, so cached indexes stay valid.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from lattice.base.turns import in_few_threads
from lattice.domain.logchunk import BadChunk, ChunkIndex, index_size, read_index
from lattice.domain.objects import NoObject, ObjectInfo, ObjectStore
from lattice.features.logs.service.seal import index_digest
from lattice.features.logs.service.sealed_objects import ChangedObject

_AT_ONCE = 16
_TAIL_BYTES = 4 * 1024
"""Enough for the index of a chunk with 8 MiB of usual frames; a larger one needs a second read."""
_MOST_NUMBERS = 2_000_000
"""In the cached indexes; about 80 MB."""


class Indexes:
    """Keeps the most recently used ones."""

    def __init__(self, objects: ObjectStore, most_numbers: int = _MOST_NUMBERS) -> None:
        self._objects = objects
        self._most_numbers = most_numbers
        self._cache: OrderedDict[str, tuple[ChunkIndex, str] | None] = OrderedDict()
        self._numbers = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self.changed: set[str] = set()
        """Sealed objects that did not open when they were last read."""

    async def of(self, info: ObjectInfo) -> ChunkIndex | None:
        """The index; None if the object is not a chunk. Raises `Unavailable`."""
        found = await self.read(info)
        return found[0] if found else None

    async def read(self, info: ObjectInfo) -> tuple[ChunkIndex, str] | None:
        """The index and its SHA-256; None if the object is not a chunk. Raises `Unavailable`."""
        if info.key in self._cache:
            self._cache.move_to_end(info.key)
            return self._cache[info.key]
        found = None
        async with self._turns:
            try:
                tail, size = await self._objects.read_end(info.key, _TAIL_BYTES)
                if index_size(tail) > len(tail):
                    tail, size = await self._objects.read_end(info.key, index_size(tail))
                found = await in_few_threads(_both, tail, size)
                self.changed.discard(info.key)
            except ChangedObject:
                # Not cached: somebody may put back what it was.
                self.changed.add(info.key)
                return None
            except (BadChunk, NoObject):
                # Not written by Lattice, or being removed.
                pass
        self._keep(info.key, found)
        return found

    def _keep(self, key: str, found: tuple[ChunkIndex, str] | None) -> None:
        if key not in self._cache:
            self._cache[key] = found
            self._numbers += _numbers(found)
        while self._numbers > self._most_numbers and len(self._cache) > 1:
            self._numbers -= _numbers(self._cache.popitem(last=False)[1])


def _numbers(found: tuple[ChunkIndex, str] | None) -> int:
    """The number of integers in an index, as a measure of its size."""
    return 8 if found is None else 8 + sum(4 + len(each.marks) for each in found[0].frames)


def _both(tail: bytes, size: int) -> tuple[ChunkIndex, str]:
    """Runs in a thread: an index may have a megabyte. Raises `BadChunk`."""
    return read_index(tail, size), index_digest(tail)
