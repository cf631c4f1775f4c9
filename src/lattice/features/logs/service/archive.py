"""The object store's part of an attempt: its streams, their chunks, and the text of a range.

A range costs its frames and the indexes of a few chunks, if one stream has a folder of keys alone.
The first and the last chunk show that. Chunks are then in the order of text and time, and a binary
search finds the range. If streams share a folder, all indexes must be read. If chunks overlap, the
text that was stored first is used (`ranges`).
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

from lattice.domain.logchunk import BadChunk, ChunkIndex, PlacedFrame, piece_of
from lattice.domain.logs import LogKind, LogSource, Piece, StreamName
from lattice.domain.objects import NoObject, ObjectInfo, ObjectStore, escaped, unescaped
from lattice.features.logs.service.checks import CheckedFrames, Checks
from lattice.features.logs.service.frames import (
    FrameForm,
    FrameForms,
    PackedFrame,
    ReadFrame,
    StoredRun,
)
from lattice.features.logs.service.indexes import Indexes
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.ranges import ChunkRange, StoredRange
from lattice.features.logs.service.seal import BrokenSeal, Seals
from lattice.features.logs.service.sealed_objects import ChangedObject
from lattice.features.logs.service.stored import NotInOrder, StoredStream

_FEW = 4
"""So few chunks are all read, without a search."""
_FIRST_RUN_BYTES = 1024 * 1024
_MOST_RUN_BYTES = 8 * 1024 * 1024
"""Text fetched together: a reader has at most two of these in memory, compressed."""


@dataclass(frozen=True, slots=True)
class Span:
    """The wanted part of every stream; the rest need not be read."""

    since_ms: int = 0
    until_ms: int | None = None
    offset: int = 0
    tail: int | None = None
    """The number of lines before the end."""


class StoredStreams(dict[StreamName, StoredStream]):
    """The streams of an attempt, by name."""

    faults: tuple[str, ...] = ()
    """How stored objects differ from their seal, as text."""


class Archive:
    """Reads chunks."""

    def __init__(self, objects: ObjectStore, seals: Seals | None = None) -> None:
        """With `seals`, sealed chunks are verified when they are read."""
        self._objects = objects
        self.indexes = Indexes(objects)
        self._seals = seals
        self._checked = CheckedFrames(objects)
        self.silent_at: float | None = None
        """When the store last did not answer in time (monotonic); None if it answered since."""

    async def streams(
        self,
        name: AttemptName,
        kinds: Iterable[LogKind],
        nodes: Iterable[str] = (),
        span: Span | None = None,
    ) -> StoredStreams:
        """Every stream of these kinds and nodes (empty: all nodes). Raises `Unavailable`.

        Without a span all of their chunks are examined.
        """
        prefixes = [
            f"{name.prefix}/{kind.value}/{node}" for kind in kinds
            for node in ([f"{escaped(each)}/" for each in nodes] or [""])
        ]  # fmt: skip
        checks, fault = await self._checks(name)
        folders: dict[str, list[ObjectInfo]] = {each: [] for each in checks.folders(prefixes)}
        for prefix in prefixes:
            async for each in self._objects.listing(prefix):
                folders.setdefault(each.key.rpartition("/")[0], []).append(each)
        found = await asyncio.gather(
            *(self._of_folder(*each, span, checks) for each in folders.items())
        )
        streams = StoredStreams({stream.name: stream for some in found for stream in some})
        streams.faults = (*([fault] if fault else []), *checks.faults())
        return streams

    async def _checks(self, name: AttemptName) -> tuple[Checks, str]:
        """The checks by the seal, if there is one; and why the seal is invalid."""
        if self._seals is None or name.attempt.ended is None:
            return Checks(), ""
        try:
            return Checks(name, self._seals, await self._seals.of(name)), ""
        except BrokenSeal as broken:
            return Checks(), f"the seal of these logs does not hold: {broken}"

    async def _of_folder(
        self, folder: str, objects: list[ObjectInfo], span: Span | None, checks: Checks
    ) -> Iterable[StoredStream]:
        objects = await checks.expected(folder, objects, self.indexes)
        if span is not None and len(objects) > _FEW:
            try:
                return [await self._searched(tuple(sorted(objects, key=_number)), span, checks)]
            except NotInOrder:
                pass
        return await self._read_all(folder, objects, checks)

    async def _read_all(
        self, folder: str, objects: Iterable[ObjectInfo], checks: Checks
    ) -> Iterable[StoredStream]:
        """The streams in these objects, by reading each index."""
        chunks: dict[StreamName, list[ChunkRange]] = {}
        found = await asyncio.gather(*(self._read_chunk(each, checks) for each in objects))
        for each in found:
            if each is not None:
                chunks.setdefault(_name(each.index), []).append(each)
        lost = checks.lost(folder, (each for each in found if each is not None))
        streams = []
        for name in {**chunks, **lost}:
            stream = StoredStream(name, checks=checks, folder=folder, is_sealed=name in lost)
            stream.know_all(chunks.get(name, ()))
            stream.lost += lost.get(name, ())
            streams.append(stream)
        return streams

    async def _read_chunk(self, info: ObjectInfo, checks: Checks) -> ChunkRange | None:
        """The chunk in this object; None if it is not a chunk, or differs from its seal."""
        found = await self.indexes.read(info)
        if found is None or not _is_of_node(info, found[0]):
            checks.is_missing(info.key, is_changed=info.key in self.indexes.changed)
            return None
        index, digest = found
        if not checks.holds(info.key, digest):
            return None
        return ChunkRange(info.key, index, info.modified, digest)

    async def _searched(
        self, objects: tuple[ObjectInfo, ...], span: Span, checks: Checks
    ) -> StoredStream:
        """The stream of all these objects. Raises `NotInOrder` if they are of several."""
        begun, last = await asyncio.gather(
            self.indexes.of(objects[0]), self.indexes.of(objects[-1])
        )
        # The last chunk has this many before it, so the folder has no chunk of another stream.
        if begun is None or last is None or last.before != len(objects) - 1:
            raise NotInOrder
        if any(second.modified < first.modified for first, second in pairwise(objects)):
            raise NotInOrder
        folder = objects[0].key.rpartition("/")[0]
        stream = StoredStream(_name(begun), objects=objects, checks=checks, folder=folder)
        stream.is_sealed = checks.has_sealed(folder, stream.name)
        await self._chunk(stream, 0)
        await self._read_back(stream, len(objects) - 1)
        # If a chunk was added after the stream's end, the one before it shows that.
        await self._chunk(stream, len(objects) - 2)
        await self._read_range(stream, span)
        return stream

    async def _read_range(self, stream: StoredStream, span: Span) -> None:
        end = stream.end
        line = 0 if span.tail is None else max(0, end.line - span.tail)

        def is_wanted(chunk: ChunkRange) -> bool:
            return (
                chunk.end.line >= line
                and chunk.end.offset > span.offset
                and _times(chunk)[1] >= span.since_ms
            )

        known = [each for chunk in stream.chunks for each in _times(chunk)]
        times = [each for each in known if each < math.inf] or [0]
        share = max(
            line / (end.line + 1),
            span.offset / (end.offset + 1),
            (span.since_ms - min(times)) / (max(times) - min(times) + 1),
        )
        begin = await self._first(stream, is_wanted, int(share * len(stream.objects)))
        # The read begins a frame early, to start with a whole line.
        await self._read_back(stream, max(0, begin - 1))
        if span.until_ms is not None:
            until_ms = span.until_ms
            past = await self._first(stream, lambda chunk: _times(chunk)[0] > until_ms, begin)
            # One of these has the first frame that begins too late.
            for number in range(max(0, past - 1), min(past + 1, len(stream.objects))):
                await self._chunk(stream, number)

    async def _first(
        self, stream: StoredStream, fits: Callable[[ChunkRange], bool], near: int
    ) -> int:
        """The number of the first chunk that fits; the number of chunks if none does.

        Growing steps from the estimate, then a binary search.
        """
        low, high, step = 0, len(stream.objects), 1
        number = min(max(near, 0), high - 1)
        has_fitted = has_failed = False
        while low < high:
            if fits(await self._chunk(stream, number)):
                high, has_fitted = number, True
            else:
                low, has_failed = number + 1, True
            if has_fitted and has_failed:
                number = (low + high) // 2
            else:
                number = max(low, high - step) if has_fitted else min(high - 1, low + step - 1)
                step *= 2
        return low

    async def _chunk(self, stream: StoredStream, number: int) -> ChunkRange:
        """The chunk of that number. Raises `NotInOrder` if it is another stream's."""
        info = stream.objects[number]
        known = stream.known(info.key)
        if known is not None:
            return known
        chunk = await self._read_chunk(info, stream.checks)
        if chunk is None or chunk.index.before != number or _name(chunk.index) != stream.name:
            raise NotInOrder
        stream.know(chunk)
        return chunk

    async def pieces(
        self,
        stream: StoredStream,
        begin: int,
        end: int | None = None,
        form_of: FrameForms = lambda _: FrameForm.READS,
    ) -> AsyncGenerator[Piece | PackedFrame]:
        """The stream's text from an offset on, each byte once, in order, up to the first hole.

        A frame is packed only if all of it is wanted.
        """
        at = begin
        async with aclosing(self._frames(stream, begin, end, form_of)) as frames:
            async for part, placed, form, content in frames:
                if max(part.begin, placed.begin.offset) > at:
                    return
                if form is FrameForm.PACKED:
                    at = placed.end.offset
                    yield PackedFrame(placed, content)
                    continue
                whole = piece_of(placed, content)
                for piece in (whole,) if form is FrameForm.WHOLE else whole.by_time():
                    if min(piece.end_offset, part.end) > at:
                        rest = piece.starting_at(at).up_to(part.end)
                        at = rest.end_offset
                        yield rest

    async def texts(self, stream: StoredStream, begin: int, end: int) -> AsyncGenerator[bytes]:
        """The text alone, up to `end` at most."""
        at = begin
        async with aclosing(self._frames(stream, begin, end)) as frames:
            async for part, placed, _, text in frames:
                begin = placed.begin.offset
                if max(part.begin, begin) > at:
                    return
                stop = min(placed.end.offset, part.end, end)
                if stop > at:
                    yield text[at - begin : stop - begin]
                    at = stop

    async def _frames(
        self,
        stream: StoredStream,
        begin: int,
        end: int | None,
        form_of: FrameForms = lambda _: FrameForm.WHOLE,
    ) -> AsyncGenerator[ReadFrame]:
        """Frames of a range; the next are fetched meanwhile."""
        most_bytes = _FIRST_RUN_BYTES
        at = begin
        coming: deque[tuple[StoredRange, asyncio.Task[StoredRun]]] = deque()
        try:
            async for part in self._ranges_from(stream, begin, end):
                stop = part.end if end is None else min(part.end, end)
                wanted = [
                    each
                    for each in part.chunk.index.placed()
                    if each.end.offset > max(at, part.begin) and each.begin.offset < stop
                ]
                while wanted:
                    run = _run(wanted, most_bytes)
                    del wanted[: len(run)]
                    at = min(run[-1].end.offset, part.end)
                    coming.append((part, asyncio.create_task(self._fetched(stream, part, run))))
                    # A page needs a quick first answer; a long read benefits from larger fetches.
                    ahead = 1 if most_bytes == _MOST_RUN_BYTES else 0
                    most_bytes = min(2 * most_bytes, _MOST_RUN_BYTES)
                    while len(coming) > ahead:
                        reading, task = coming.popleft()
                        async for each in (await task).frames_from(begin, form_of):
                            yield each
            while coming:
                reading, task = coming.popleft()
                async for each in (await task).frames_from(begin, form_of):
                    yield each
        except (BadChunk, NoObject) as fault:
            # This iterator ends before the chunk; the next one has it as lost.
            await self._lose(stream, reading.chunk, is_changed=isinstance(fault, ChangedObject))
        finally:
            for _, task in coming:
                task.cancel()
            await asyncio.gather(*(task for _, task in coming), return_exceptions=True)

    async def _lose(self, stream: StoredStream, chunk: ChunkRange, *, is_changed: bool) -> None:
        if stream.objects:
            await self._resolve_all(stream)
        if is_changed:
            stream.checks.is_missing(chunk.key, is_changed=True)
        stream.lose(chunk, tampered=is_changed or stream.checks.covers(chunk.key))

    async def _resolve_all(self, stream: StoredStream) -> None:
        found = await self._read_all(stream.folder, stream.objects, stream.checks)
        for each in found:
            if each.name == stream.name:
                stream.know_all(each.chunks)
                stream.lost = each.lost

    async def _ranges_from(
        self, stream: StoredStream, offset: int, end: int | None
    ) -> AsyncIterator[StoredRange]:
        for part in () if stream.objects else tuple(stream.resolved.ranges):
            if end is not None and part.begin >= end:
                return
            yield part
        try:
            near = len(stream.objects) * offset // (stream.end.offset + 1)
            number = await self._first(stream, lambda each: each.end.offset >= offset, near)
            while number < len(stream.objects):
                chunk = await self._chunk(stream, number)
                if end is not None and chunk.index.offset >= end:
                    return
                number += 1
                if end is None or chunk.end.offset <= end:
                    await self._read_ahead(stream, number)
                yield StoredRange(chunk.index.offset, chunk.end.offset, chunk)
        except NotInOrder:
            # An object is damaged, or was removed since. This iterator ends before it.
            await self._resolve_all(stream)

    async def _read_back(self, stream: StoredStream, number: int) -> None:
        """Read back to a chunk with text: others may have no time."""
        while not (await self._chunk(stream, number)).index.frames and number:
            number -= 1

    async def _read_ahead(self, stream: StoredStream, number: int) -> None:
        """Read ahead to a chunk with text: gaps at a chunk's end are in the next ones."""
        while number < len(stream.objects):
            if (await self._chunk(stream, number)).index.frames:
                return
            number += 1

    async def _fetched(
        self, stream: StoredStream, part: StoredRange, frames: list[PlacedFrame]
    ) -> StoredRun:
        begin, last = frames[0].stored_at, frames[-1]
        if stream.checks.covers(part.chunk.key):
            return StoredRun(part, frames, begin, await self._checked.read(part.chunk, frames))
        end = last.stored_at + last.frame.stored_bytes
        return StoredRun(part, frames, begin, await self._objects.read(part.chunk.key, begin, end))


def _name(index: ChunkIndex) -> StreamName:
    return StreamName(index.node, index.kind, LogSource.parse(index.source))


def _is_of_node(info: ObjectInfo, index: ChunkIndex) -> bool:
    return unescaped(info.key.split("/")[-2]) == index.node


def _number(info: ObjectInfo) -> tuple[int, str]:
    """The order of chunk numbers, which is that of keys up to a million."""
    return len(info.key), info.key


def _times(chunk: ChunkRange) -> tuple[float, float]:
    """The times of its first and last text or gap, in ms."""
    index = chunk.index
    if index.frames:
        return index.frames[0].times_ms[0], index.frames[-1].times_ms[1]
    if index.gap_records:
        return index.gap_records[0].time_ms, index.gap_records[-1].time_ms
    # An empty last chunk has no time.
    return math.inf, math.inf


def _run(frames: list[PlacedFrame], most_bytes: int) -> list[PlacedFrame]:
    """The first adjacent frames, to fetch together."""
    begin = frames[0].begin.offset
    count = bisect_right(frames, begin + most_bytes, key=lambda each: each.end.offset)
    return frames[: max(1, count)]
