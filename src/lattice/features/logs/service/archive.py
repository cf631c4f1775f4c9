"""What the object store has of an attempt: its streams, their chunks, and the text of a range.

A range costs its frames, and the indexes of a few chunks: where one stream has a folder of keys to
itself, which its first and its last chunk can tell, chunks lie in the order of text and time, and
the range is found by halving. Where streams share a folder, the indexes alone say which chunk is
whose, and all are read.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from lattice.domain.logchunk import ChunkIndex, PlacedFrame, expand, pieces_of
from lattice.domain.logs import Gap, LogKind, LogSource, Piece, Position, StreamName
from lattice.domain.objects import ObjectInfo, ObjectStore, escaped, unescaped
from lattice.features.logs.service.indexes import Indexes
from lattice.features.logs.service.naming import AttemptName

_FEW = 4
"""So many chunks are looked at rather than searched."""
_FIRST_RUN_BYTES = 1024 * 1024
_MOST_RUN_BYTES = 8 * 1024 * 1024
"""Of text that is fetched together: a reader has at most two of these in memory, compressed."""


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One object and what is in it."""

    key: str
    index: ChunkIndex
    end: Position = field(init=False)
    """The place after its last byte, which an index has to add up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.index.end)


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of every stream is wanted. What lies elsewhere need not be known."""

    since_ms: int = 0
    until_ms: int | None = None
    offset: int = 0
    tail: int | None = None
    """So many lines before the end."""


@dataclass(slots=True)
class StoredStream:
    """One stream, as far as the store has it."""

    name: StreamName
    chunks: list[StoredChunk] = field(default_factory=list)
    """In order. Of a stream with `objects`, those that were looked at: the first and the last, and
    what its range needs."""
    objects: tuple[ObjectInfo, ...] = ()
    """Every object of a stream whose order is known without looking; else empty."""
    _known: dict[str, StoredChunk] = field(default_factory=dict)
    _gaps: tuple[Gap, ...] | None = None

    @property
    def end(self) -> Position:
        return max((each.end for each in self.chunks), default=Position())

    @property
    def last(self) -> bool:
        """True if nothing will be added."""
        return any(each.index.last for each in self.chunks)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """In order; one that was told twice is there once."""
        if self._gaps is None:
            found = {(gap.at, gap.cause): gap for each in self.chunks for gap in each.index.gaps}
            self._gaps = tuple(sorted(found.values(), key=lambda gap: gap.at))
        return self._gaps

    @property
    def path(self) -> str:
        return self.chunks[-1].index.path if self.chunks else ""

    @property
    def labelled(self) -> bool:
        return any(each.index.labelled for each in self.chunks)

    def known(self, key: str) -> StoredChunk | None:
        """One that was looked at."""
        return self._known.get(key)

    def know(self, chunk: StoredChunk) -> None:
        """One more was looked at."""
        self._known[chunk.key] = chunk
        insort(self.chunks, chunk, key=_in_order)
        self._gaps = None

    def know_all(self, chunks: Iterable[StoredChunk]) -> None:
        """Every one was looked at; these are its own, in order."""
        self.chunks = list(chunks)
        self.objects = ()
        self._gaps = None


class _NotInOrder(Exception):
    """A folder is not one stream's, or changes just now."""


class Archive:
    """Reads chunks."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._indexes = Indexes(objects)
        self.silent_at: float | None = None
        """When the store last kept somebody waiting for nothing; None if it answered since."""

    async def streams(
        self,
        name: AttemptName,
        kinds: Iterable[LogKind],
        nodes: Iterable[str] = (),
        span: Span | None = None,
    ) -> dict[StreamName, StoredStream]:
        """Every stream of these kinds and nodes (none: of all). Raises `Unavailable`.

        Without a span every chunk of theirs is looked at.
        """
        prefixes = [
            f"{name.prefix}/{kind.value}/{node}" for kind in kinds
            for node in ([f"{escaped(each)}/" for each in nodes] or [""])
        ]  # fmt: skip
        folders: dict[str, list[ObjectInfo]] = {}
        for prefix in prefixes:
            async for each in self._objects.listing(prefix):
                folders.setdefault(each.key.rpartition("/")[0], []).append(each)
        found = await asyncio.gather(*(self._of_folder(each, span) for each in folders.values()))
        return {stream.name: stream for streams in found for stream in streams}

    async def _of_folder(
        self, objects: list[ObjectInfo], span: Span | None
    ) -> Iterable[StoredStream]:
        if span is not None and len(objects) > _FEW:
            try:
                return [await self._searched(tuple(sorted(objects, key=_number)), span)]
            except _NotInOrder:
                pass
        return await self._looked_at(objects)

    async def _looked_at(self, objects: Iterable[ObjectInfo]) -> Iterable[StoredStream]:
        """The streams in these, by looking at each."""
        streams: dict[StreamName, StoredStream] = {}
        indexes = await asyncio.gather(*map(self._indexes.of, objects))
        for each, index in zip(objects, indexes, strict=True):
            if index is not None and _is_in_place(each, index):
                held = streams.setdefault(_name(index), StoredStream(_name(index)))
                held.chunks.append(StoredChunk(each.key, index))
        for held in streams.values():
            held.chunks.sort(key=_in_order)
        return streams.values()

    async def _searched(self, objects: tuple[ObjectInfo, ...], span: Span) -> StoredStream:
        """The stream to which all of these belong. Raises `_NotInOrder` if there is none."""
        first, last = await asyncio.gather(
            self._indexes.of(objects[0]), self._indexes.of(objects[-1])
        )
        # That many chunks came before its last one, so there is room for no other stream's.
        if first is None or last is None or last.before != len(objects) - 1:
            raise _NotInOrder
        stream = StoredStream(_name(first), objects=objects)
        await self._chunk(stream, 0)
        await self._look_back(stream, len(objects) - 1)
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
        """Raises `_NotInOrder` if this is not the stream's chunk of that number."""
        info = stream.objects[number]
        known = stream.known(info.key)
        if known is not None:
            return known
        index = await self._indexes.of(info)
        if index is None or not _is_in_place(info, index):
            raise _NotInOrder
        if index.before != number or _name(index) != stream.name:
            raise _NotInOrder
        chunk = StoredChunk(info.key, index)
        stream.know(chunk)
        return chunk

    async def pieces(
        self, stream: StoredStream, begin: int, end: int | None = None
    ) -> AsyncGenerator[Piece]:
        """The stream's text from an offset on, each byte once, in order, as far as it joins."""
        at = begin
        async with aclosing(self._frames(stream, begin, end)) as frames:
            async for placed, text in frames:
                if placed.begin.offset > at:
                    return
                for piece in pieces_of(placed, text):
                    if piece.at.offset + len(piece.text) > at:
                        rest = piece.starting_at(at)
                        at = rest.at.offset + len(rest.text)
                        yield rest

    async def texts(self, stream: StoredStream, begin: int, end: int) -> AsyncGenerator[bytes]:
        """The same without places and times, and not beyond `end`."""
        at = begin
        async with aclosing(self._frames(stream, begin, end)) as frames:
            async for placed, text in frames:
                if placed.begin.offset > at:
                    return
                if placed.end.offset > at:
                    part = text[at - placed.begin.offset : end - placed.begin.offset]
                    at += len(part)
                    yield part

    async def _frames(
        self, stream: StoredStream, begin: int, end: int | None
    ) -> AsyncGenerator[tuple[PlacedFrame, bytes]]:
        """Frames of a range with their text; the next are fetched while these are used."""
        most_bytes = _FIRST_RUN_BYTES
        at = begin
        coming: deque[asyncio.Task[_Run]] = deque()
        try:
            async for chunk in self._chunks_from(stream, begin, end):
                wanted = [
                    each
                    for each in chunk.index.placed()
                    if each.end.offset > at and (end is None or each.begin.offset < end)
                ]
                while wanted:
                    run = _run(wanted, most_bytes)
                    del wanted[: len(run)]
                    at = run[-1].end.offset
                    coming.append(asyncio.create_task(self._fetched(chunk, run)))
                    # Whoever wants a page has it soon; whoever reads on reads much.
                    ahead = 1 if most_bytes == _MOST_RUN_BYTES else 0
                    most_bytes = min(2 * most_bytes, _MOST_RUN_BYTES)
                    while len(coming) > ahead:
                        async for each in _expanded(await coming.popleft()):
                            yield each
            while coming:
                async for each in _expanded(await coming.popleft()):
                    yield each
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, return_exceptions=True)

    async def _chunks_from(
        self, stream: StoredStream, offset: int, end: int | None
    ) -> AsyncIterator[StoredChunk]:
        for chunk in () if stream.objects else tuple(stream.chunks):
            if end is not None and chunk.index.offset >= end:
                return
            yield chunk
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
                yield chunk
        except _NotInOrder:
            # An object is damaged, or was removed since. This ends here, before it.
            found = await self._looked_at(stream.objects)
            stream.know_all(each for one in found if one.name == stream.name for each in one.chunks)

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

    async def _fetched(self, chunk: StoredChunk, frames: list[PlacedFrame]) -> _Run:
        begin, last = frames[0].stored_at, frames[-1]
        end = last.stored_at + last.frame.stored_bytes
        return _Run(frames, begin, await self._objects.read(chunk.key, begin, end))


@dataclass(frozen=True, slots=True)
class _Run:
    """Frames side by side, as they are stored."""

    frames: list[PlacedFrame]
    begin: int
    """Where the first lies in its object."""
    stored: bytes


async def _expanded(run: _Run) -> AsyncIterator[tuple[PlacedFrame, bytes]]:
    """Each with its text. A reader has the text of two in memory, not that of a run."""
    stored = memoryview(run.stored)

    def text_of(placed: PlacedFrame) -> bytes:
        begin = placed.stored_at - run.begin
        return expand(stored[begin : begin + placed.frame.stored_bytes], placed.frame)

    for placed in run.frames:
        yield placed, await asyncio.to_thread(text_of, placed)


def _name(index: ChunkIndex) -> StreamName:
    return StreamName(index.node, index.kind, LogSource.parse(index.source))


def _is_in_place(info: ObjectInfo, index: ChunkIndex) -> bool:
    return unescaped(info.key.split("/")[-2]) == index.node


def _number(info: ObjectInfo) -> tuple[int, str]:
    """The order of numbers, which is that of keys up to a million."""
    return len(info.key), info.key


def _in_order(chunk: StoredChunk) -> tuple[Position, Position]:
    return chunk.index.begin, chunk.end


def _times(chunk: StoredChunk) -> tuple[float, float]:
    """When its first and its last text was read, or that something is missing was seen."""
    index = chunk.index
    if index.frames:
        return index.frames[0].times_ms[0], index.frames[-1].times_ms[1]
    if index.gap_records:
        return index.gap_records[0].time_ms, index.gap_records[-1].time_ms
    # It only says that nothing comes.
    return math.inf, math.inf


def _run(frames: list[PlacedFrame], most_bytes: int) -> list[PlacedFrame]:
    """The first ones, which are side by side and are read together."""
    begin = frames[0].begin.offset
    count = bisect_right(frames, begin + most_bytes, key=lambda each: each.end.offset)
    return frames[: max(1, count)]
