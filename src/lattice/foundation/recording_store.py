"""The chunks of recordings in the bucket of sensitive work. A chunk is written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.objects import NoObject, ObjectStore
from lattice.domain.recording import (
    LARGEST_CHUNK_BYTES,
    BadRecording,
    ChunkHead,
    MissingChunk,
    link_of,
)
from lattice.domain.recording_path import RecordingPath, chunk_number

_AT_ONCE = 8
"""Reads, or deletions. Chunks are small, but those of somebody else may be as large as allowed."""


class RecordingConflict(DataUnavailable):
    """The bucket has another chunk under this number."""


@dataclass(frozen=True, slots=True)
class _Read:
    number: int
    body: bytes = b""
    problem: BadRecording | Unavailable | None = None

    def checked(self) -> bytes:
        if self.problem is not None:
            raise self.problem
        return self.body


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
        prefix = f"{path.prefix}/"
        after = path.key(begin - 1) if begin else ""
        numbers: list[int] = []
        async for each in self._objects.listing(prefix, after=after):
            number = chunk_number(each.key.removeprefix(prefix))
            if number is not None:
                numbers.append(number)
            if len(numbers) >= _AT_ONCE:
                for chunk in await self._read_all(path, numbers):
                    yield chunk.number, chunk.checked()
                numbers = []
        for chunk in await self._read_all(path, numbers):
            yield chunk.number, chunk.checked()

    async def first_chunks(
        self, path: RecordingPath, count: int
    ) -> AsyncIterator[tuple[int, bytes]]:
        """So many chunks from the first one on, without a listing. Raises `BadRecording`."""
        for begin in range(0, count, _AT_ONCE):
            numbers = range(begin, min(begin + _AT_ONCE, count))
            for chunk in await self._read_all(path, numbers):
                yield chunk.number, chunk.checked()

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
            if len(keys) >= _AT_ONCE:
                await asyncio.gather(*map(self._objects.delete, keys))
                removed += len(keys)
                keys.clear()
        await asyncio.gather(*map(self._objects.delete, keys))
        return removed + len(keys)

    async def _read_all(self, path: RecordingPath, numbers: Iterable[int]) -> list[_Read]:
        """Read some at once. A problem of one is kept for its turn."""
        return await asyncio.gather(*(self._try_read(path, each) for each in numbers))

    async def _try_read(self, path: RecordingPath, number: int) -> _Read:
        try:
            body = await self._objects.read(path.key(number), 0, LARGEST_CHUNK_BYTES + 1)
        except NoObject:
            return _Read(number, problem=MissingChunk(number))
        except Unavailable as problem:
            return _Read(number, problem=problem)
        if len(body) > LARGEST_CHUNK_BYTES:
            return _Read(number, problem=BadRecording(number, "it is too large for a chunk"))
        return _Read(number, body)

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
