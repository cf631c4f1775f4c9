"""What the object store has of an attempt: its streams, their chunks, and the text of a range.

A range costs its frames, and the indexes of a few chunks: where one stream has a folder of keys to
itself, which its first and its last chunk can tell, chunks lie in the order of text and time, and
the range is found by halving. Where streams share a folder, the indexes alone say which chunk is
whose, and all are read. Where chunks overlap, what was stored first is read (`stored`).
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
from typing import TypeAlias

from lattice.base.heavy import in_few_threads
from lattice.domain.logchunk import BadChunk, ChunkIndex, PlacedFrame, expand, pieces_of
from lattice.domain.logs import LogKind, LogSource, Piece, StreamName
from lattice.domain.objects import NoObject, ObjectInfo, ObjectStore, escaped, unescaped
from lattice.features.logs.service.checks import CheckedFrames, Checks
from lattice.features.logs.service.indexes import Indexes
from lattice.features.logs.service.naming import AttemptName
from lattice.features.logs.service.ranges import StoredChunk, StoredRange
from lattice.features.logs.service.seal import BrokenSeal, Seals
from lattice.features.logs.service.stored import NotInOrder, StoredStream

_FEW = 4
"""So many chunks are looked at rather than searched."""
_FIRST_RUN_BYTES = 1024 * 1024
_MOST_RUN_BYTES = 8 * 1024 * 1024
"""Of text that is fetched together: a reader has at most two of these in memory, compressed."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of every stream is wanted. What lies elsewhere need not be known."""

    since_ms: int = 0
    until_ms: int | None = None
    offset: int = 0
    tail: int | None = None
    """So many lines before the end."""


class StoredStreams(dict[StreamName, StoredStream]):
    """The streams of an attempt, by name."""

    faults: tuple[str, ...] = ()
    """How what is stored differs from what was sealed, in words."""


_ReadFrame: TypeAlias = tuple[StoredRange, PlacedFrame, bytes]
"""A frame with its text, of which the part that lies in the range counts."""


class Archive:
    """Reads chunks."""

    def __init__(self, objects: ObjectStore, seals: Seals | None = None) -> None:
        """With `seals`, what was sealed is checked as it is read."""
        self._objects = objects
        self._indexes = Indexes(objects)
        self._seals = seals
        self._checked = CheckedFrames(objects)
        self.silent_at: float | None = None
        """When the store last kept somebody waiting for nothing; None if it answered since."""

    async def streams(
        self,
        name: AttemptName,
        kinds: Iterable[LogKind],
        nodes: Iterable[str] = (),
        span: Span | None = None,
    ) -> StoredStreams:
        """Every stream of these kinds and nodes (none: of all). Raises `Unavailable`.

        Without a span every chunk of theirs is looked at.
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
        """What the seal says, if there is one; and why it can't be believed."""
        if self._seals is None or name.attempt.ended is None:
            return Checks(), ""
        try:
            return Checks(name, self._seals, await self._seals.of(name)), ""
        except BrokenSeal as broken:
            return Checks(), f"the seal of these logs does not hold: {broken}"

    async def _of_folder(
        self, folder: str, objects: list[ObjectInfo], span: Span | None, checks: Checks
    ) -> Iterable[StoredStream]:
        objects = await checks.expected(folder, objects, self._indexes)
        if span is not None and len(objects) > _FEW:
            try:
                return [await self._searched(tuple(sorted(objects, key=_number)), span, checks)]
            except NotInOrder:
                pass
        return await self._looked_at(folder, objects, checks)

    async def _looked_at(
        self, folder: str, objects: Iterable[ObjectInfo], checks: Checks
    ) -> Iterable[StoredStream]:
        """The streams in these, by looking at each."""
        chunks: dict[StreamName, list[StoredChunk]] = {}
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

    async def _read_chunk(self, info: ObjectInfo, checks: Checks) -> StoredChunk | None:
        """The chunk in this object; None if it is none, or not the one that was sealed."""
        found = await self._indexes.read(info)
        if found is None or not _is_in_place(info, found[0]):
            checks.is_missing(info.key)
            return None
        index, digest = found
        if not checks.holds(info.key, digest):
            return None
        return StoredChunk(info.key, index, info.modified, digest)

    async def _searched(
        self, objects: tuple[ObjectInfo, ...], span: Span, checks: Checks
    ) -> StoredStream:
        """The stream to which all of these belong. Raises `NotInOrder` if there is none."""
        begun, last = await asyncio.gather(
            self._indexes.of(objects[0]), self._indexes.of(objects[-1])
        )
        # That many chunks came before its last one, so there is room for no other stream's.
        if begun is None or last is None or last.before != len(objects) - 1:
            raise NotInOrder
        if any(second.modified < first.modified for first, second in pairwise(objects)):
            raise NotInOrder
        folder = objects[0].key.rpartition("/")[0]
        stream = StoredStream(_name(begun), objects=objects, checks=checks, folder=folder)
        stream.is_sealed = checks.has_sealed(folder, stream.name)
        await self._chunk(stream, 0)
        await self._look_back(stream, len(objects) - 1)
        # One that was added to a stream that had ended is found out by the one before it.
        await self._chunk(stream, len(objects) - 2)
        await self._look_at_range(stream, span)
        return stream

    async def _look_at_range(self, stream: StoredStream, span: Span) -> None:
        end = stream.end
        line = 0 if span.tail is None else max(0, end.line - span.tail)

        def is_wanted(chunk: StoredChunk) -> bool:
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
        # Reading begins a frame early, to begin with a whole line.
        await self._look_back(stream, max(0, begin - 1))
        if span.until_ms is not None:
            until_ms = span.until_ms
            past = await self._first(stream, lambda chunk: _times(chunk)[0] > until_ms, begin)
            # The first frame that begins too late is in one of these.
            for number in range(max(0, past - 1), min(past + 1, len(stream.objects))):
                await self._chunk(stream, number)

    async def _first(
        self, stream: StoredStream, fits: Callable[[StoredChunk], bool], near: int
    ) -> int:
        """The first chunk that fits; behind the last if none does.

        In growing steps away from where it is thought to be, and then halving.
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

    async def _chunk(self, stream: StoredStream, number: int) -> StoredChunk:
        """Raises `NotInOrder` if this is not the stream's chunk of that number."""
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
        self, stream: StoredStream, begin: int, end: int | None = None
    ) -> AsyncGenerator[Piece]:
        """The stream's text from an offset on, each byte once, in order, as far as it joins."""
        at = begin
        async with aclosing(self._frames(stream, begin, end)) as frames:
            async for part, placed, text in frames:
                if max(part.begin, placed.begin.offset) > at:
                    return
                for piece in pieces_of(placed, text):
                    if min(piece.end_offset, part.end) > at:
                        rest = _up_to(piece.starting_at(at), part.end)
                        at = rest.end_offset
                        yield rest

    async def texts(self, stream: StoredStream, begin: int, end: int) -> AsyncGenerator[bytes]:
        """The same without places and times, and not beyond `end`."""
        at = begin
        async with aclosing(self._frames(stream, begin, end)) as frames:
            async for part, placed, text in frames:
                begin = placed.begin.offset
                if max(part.begin, begin) > at:
                    return
                stop = min(placed.end.offset, part.end, end)
                if stop > at:
                    yield text[at - begin : stop - begin]
                    at = stop

    async def _frames(
        self, stream: StoredStream, begin: int, end: int | None
    ) -> AsyncGenerator[_ReadFrame]:
        """Frames of a range with their text; the next are fetched while these are used."""
        most_bytes = _FIRST_RUN_BYTES
        at = begin
        coming: deque[tuple[StoredRange, asyncio.Task[_Run]]] = deque()
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
                    # Whoever wants a page has it soon; whoever reads on reads much.
                    ahead = 1 if most_bytes == _MOST_RUN_BYTES else 0
                    most_bytes = min(2 * most_bytes, _MOST_RUN_BYTES)
                    while len(coming) > ahead:
                        reading, task = coming.popleft()
                        async for each in _expanded(await task):
                            yield each
            while coming:
                reading, task = coming.popleft()
                async for each in _expanded(await task):
                    yield each
        except (BadChunk, NoObject):
            # This ends here, before it; who reads on finds that it is lost.
            await self._lose(stream, reading.chunk)
        finally:
            for _, task in coming:
                task.cancel()
            await asyncio.gather(*(task for _, task in coming), return_exceptions=True)

    async def _lose(self, stream: StoredStream, chunk: StoredChunk) -> None:
        if stream.objects:
            await self._resolve_all(stream)
        stream.lose(chunk, tampered=stream.checks.covers(chunk.key))

    async def _resolve_all(self, stream: StoredStream) -> None:
        found = await self._looked_at(stream.folder, stream.objects, stream.checks)
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
                    await self._look_ahead(stream, number)
                yield StoredRange(chunk.index.offset, chunk.end.offset, chunk)
        except NotInOrder:
            # An object is damaged, or was removed since. This ends here, before it.
            await self._resolve_all(stream)

    async def _look_back(self, stream: StoredStream, number: int) -> None:
        """As far as there is text: what has none has no time either."""
        while not (await self._chunk(stream, number)).index.frames and number:
            number -= 1

    async def _look_ahead(self, stream: StoredStream, number: int) -> None:
        """What is missing at the end of a chunk, the next one tells."""
        while number < len(stream.objects):
            if (await self._chunk(stream, number)).index.frames:
                return
            number += 1

    async def _fetched(
        self, stream: StoredStream, part: StoredRange, frames: list[PlacedFrame]
    ) -> _Run:
        begin, last = frames[0].stored_at, frames[-1]
        if stream.checks.covers(part.chunk.key):
            return _Run(part, frames, begin, await self._checked.read(part.chunk, frames))
        end = last.stored_at + last.frame.stored_bytes
        return _Run(part, frames, begin, await self._objects.read(part.chunk.key, begin, end))


@dataclass(frozen=True, slots=True)
class _Run:
    """Frames side by side, as they are stored."""

    part: StoredRange
    frames: list[PlacedFrame]
    begin: int
    """Where the first lies in its object."""
    stored: bytes


async def _expanded(run: _Run) -> AsyncIterator[_ReadFrame]:
    """Each with its text. A reader has the text of two in memory, not that of a run."""
    stored = memoryview(run.stored)

    def text_of(placed: PlacedFrame) -> bytes:
        begin = placed.stored_at - run.begin
        return expand(stored[begin : begin + placed.frame.stored_bytes], placed.frame)

    for placed in run.frames:
        yield run.part, placed, await in_few_threads(text_of, placed)


def _name(index: ChunkIndex) -> StreamName:
    return StreamName(index.node, index.kind, LogSource.parse(index.source))


def _is_in_place(info: ObjectInfo, index: ChunkIndex) -> bool:
    return unescaped(info.key.split("/")[-2]) == index.node


def _number(info: ObjectInfo) -> tuple[int, str]:
    """The order of numbers, which is that of keys up to a million."""
    return len(info.key), info.key


def _times(chunk: StoredChunk) -> tuple[float, float]:
    """When its first and its last text was read, or that something is missing was seen."""
    index = chunk.index
    if index.frames:
        return index.frames[0].times_ms[0], index.frames[-1].times_ms[1]
    if index.gap_records:
        return index.gap_records[0].time_ms, index.gap_records[-1].time_ms
    # It only says that nothing comes.
    return math.inf, math.inf


def _up_to(piece: Piece, end: int) -> Piece:
    """The piece without what lies behind `end`."""
    if piece.end_offset <= end:
        return piece
    return Piece(piece.at, piece.time_ms, piece.late, piece.text[: end - piece.at.offset])


def _run(frames: list[PlacedFrame], most_bytes: int) -> list[PlacedFrame]:
    """The first ones, which are side by side and are read together."""
    begin = frames[0].begin.offset
    count = bisect_right(frames, begin + most_bytes, key=lambda each: each.end.offset)
    return frames[: max(1, count)]
