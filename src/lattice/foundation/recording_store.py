"""The chunks of recordings in the bucket of sensitive work. A chunk is written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lattice.base.errors import DataUnavailable
from lattice.domain.objects import NoObject, ObjectInfo, ObjectStore
from lattice.domain.recording import (
    LARGEST_CHUNK_BYTES,
    BadRecording,
    ChunkHead,
    MissingChunk,
    link_of,
)
from lattice.domain.recording_path import RecordingPath, chunk_number

_READ_AT_ONCE = 16
_READ_AT_ONCE_BYTES = 2 * LARGEST_CHUNK_BYTES
_DELETED_AT_ONCE = 8


class RecordingConflict(DataUnavailable):
    """The bucket has another chunk under this number."""


class RecordingStore:
    """Every method raises `Unavailable` while the bucket does not answer."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put(self, path: RecordingPath, chunk: bytes, before: bytes | None) -> bytes:
        """Store a chunk, and return its link. `before` is the link of the last one, if known.

        Raises `RecordingConflict` unless it follows the chunk that is stored before it.
        """
        try:
            head = ChunkHead.parse(chunk)
        except ValueError as problem:
            raise RecordingConflict(f"A chunk can't be parsed: {problem}.") from None
        if before is None:
            before = await self._link_before(path, head.number)
        if head.before != before:
            raise RecordingConflict(f"Chunk {head.number} does not follow the one before.")
        key, link = path.key(head.number), link_of(chunk)
        # The same chunk may come again after an answer was lost.
        if not await self._objects.put_new(key, chunk) and link_of(await self._read(key)) != link:
            raise RecordingConflict(f"The bucket has another chunk {head.number}.")
        return link

    async def chunks(self, path: RecordingPath, begin: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """The stored chunks in order, from this number on. Raises `BadRecording`."""
        async for group in self.groups(path, begin):
            for each in group:
                yield each

    async def groups(
        self, path: RecordingPath, begin: int = 0
    ) -> AsyncIterator[list[tuple[int, bytes]]]:
        """The same, as they were read: some at once, which is faster."""
        prefix = f"{path.prefix}/"
        after = path.key(begin - 1) if begin else ""
        group: list[tuple[int, ObjectInfo]] = []
        size = 0
        async for each in self._objects.listing(prefix, after=after):
            number = chunk_number(each.key.removeprefix(prefix))
            if number is None:
                continue
            if each.size_bytes > LARGEST_CHUNK_BYTES:
                raise BadRecording(number, "it is too large for a chunk")
            if len(group) >= _READ_AT_ONCE or size + each.size_bytes > _READ_AT_ONCE_BYTES:
                yield await self._read_group(group)
                group, size = [], 0
            group.append((number, each))
            size += each.size_bytes
        if group:
            yield await self._read_group(group)

    async def chunk(self, path: RecordingPath, number: int) -> bytes:
        """One chunk. Raises `RecordingConflict` if it is missing."""
        return await self._read(path.key(number))

    async def last(self, path: RecordingPath) -> tuple[int, bytes] | None:
        """The chunk with the highest number; None if there is none."""
        prefix, last = f"{path.prefix}/", None
        async for each in self._objects.listing(prefix):
            # What is no chunk is none of the recording.
            number = chunk_number(each.key.removeprefix(prefix))
            last = number if number is not None else last
        return (last, await self.chunk(path, last)) if last is not None else None

    async def remove(self, path: RecordingPath) -> int:
        """Remove every chunk; return how many. One that was interrupted is done again."""
        keys: list[str] = []
        removed = 0
        async for each in self._objects.listing(f"{path.prefix}/"):
            keys.append(each.key)
            if len(keys) >= _DELETED_AT_ONCE:
                await asyncio.gather(*map(self._objects.delete, keys))
                removed += len(keys)
                keys.clear()
        await asyncio.gather(*map(self._objects.delete, keys))
        return removed + len(keys)

    async def _read_group(self, group: list[tuple[int, ObjectInfo]]) -> list[tuple[int, bytes]]:
        bodies = await asyncio.gather(*(self._listed(*each) for each in group))
        return [(number, body) for (number, _), body in zip(group, bodies, strict=True)]

    async def _listed(self, number: int, listed: ObjectInfo) -> bytes:
        try:
            # No more than its listed size, also if it was replaced meanwhile.
            return await self._objects.read(listed.key, 0, max(1, listed.size_bytes))
        except NoObject:
            raise MissingChunk(number) from None

    async def _link_before(self, path: RecordingPath, number: int) -> bytes:
        if number == 0:
            return path.name.first_link
        try:
            return link_of(await self._read(path.key(number - 1)))
        except RecordingConflict:
            raise RecordingConflict(f"Chunk {number - 1} is missing.") from None

    async def _read(self, key: str) -> bytes:
        try:
            return await self._objects.read(key)
        except NoObject:
            raise RecordingConflict("A chunk is missing.") from None
