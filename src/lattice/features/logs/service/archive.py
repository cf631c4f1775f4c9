"""What the object store has of an attempt: its streams, their chunks, and the text of a range.

Objects never change once written, so an index that was read is kept. A range costs the ends of the
chunks it might be in (their indexes) and the frames it is in.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from lattice.domain.logchunk import (
    TAIL_BYTES,
    BadChunk,
    ChunkIndex,
    PlacedFrame,
    expand,
    index_size,
    pieces_of,
    read_index,
)
from lattice.domain.logs import Gap, LogKind, LogSource, Piece, Position, StreamName
from lattice.domain.objects import NoObject, ObjectInfo, ObjectStore, escaped, unescaped
from lattice.features.logs.service.naming import AttemptName

_AT_ONCE = 16
_MOST_INDEXES = 20_000
_MOST_READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One object and what is in it."""

    key: str
    index: ChunkIndex


@dataclass(slots=True)
class StoredStream:
    """One stream, as far as the store has it."""

    name: StreamName
    chunks: list[StoredChunk] = field(default_factory=list)

    @property
    def end(self) -> Position:
        return max((each.index.end for each in self.chunks), default=Position())

    @property
    def last(self) -> bool:
        """True if nothing will be added."""
        return any(each.index.last for each in self.chunks)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """In order; one that was told twice is there once."""
        found = {(gap.at, gap.cause): gap for each in self.chunks for gap in each.index.gaps}
        return tuple(sorted(found.values(), key=lambda gap: gap.at))

    @property
    def path(self) -> str:
        return self.chunks[-1].index.path if self.chunks else ""

    @property
    def labelled(self) -> bool:
        return any(each.index.labelled for each in self.chunks)


class Archive:
    """Reads chunks."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._indexes: OrderedDict[str, ChunkIndex | None] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def streams(
        self, name: AttemptName, kinds: Iterable[LogKind], nodes: Iterable[str] = ()
    ) -> dict[StreamName, StoredStream]:
        """Every stream of these kinds and nodes (none: of all). Raises `Unavailable`."""
        prefixes = [
            f"{name.prefix}/{kind.value}/{node}" for kind in kinds
            for node in ([f"{escaped(each)}/" for each in nodes] or [""])
        ]  # fmt: skip
        found: list[ObjectInfo] = []
        for prefix in prefixes:
            found += [each async for each in self._objects.listing(prefix)]
        indexes = await asyncio.gather(*(self._index(each) for each in found))
        streams: dict[StreamName, StoredStream] = {}
        for each, index in zip(found, indexes, strict=True):
            if index is None or unescaped(each.key.split("/")[-2]) != index.node:
                continue
            stream = StreamName(index.node, index.kind, LogSource.parse(index.source))
            held = streams.setdefault(stream, StoredStream(stream))
            held.chunks.append(StoredChunk(each.key, index))
        for held in streams.values():
            held.chunks.sort(key=lambda chunk: (chunk.index.begin, chunk.index.end))
        return streams

    async def pieces(
        self, stream: StoredStream, begin: int, end: int | None = None
    ) -> AsyncIterator[Piece]:
        """The stream's text from an offset on, each byte once, in order."""
        at = begin
        for chunk in stream.chunks:
            wanted = [
                each
                for each in chunk.index.placed()
                if each.end.offset > at and (end is None or each.begin.offset < end)
            ]
            for run in _runs(wanted):
                for placed, text in await self._texts(chunk, run):
                    for piece in pieces_of(placed, text):
                        if piece.end.offset > at:
                            rest = piece.starting_at(at)
                            yield rest
                            at = rest.end.offset

    async def _texts(
        self, chunk: StoredChunk, run: list[PlacedFrame]
    ) -> list[tuple[PlacedFrame, bytes]]:
        begin = run[0].stored_at
        stored = await self._objects.read(
            chunk.key, begin, run[-1].stored_at + run[-1].frame.stored_bytes
        )

        def expanded() -> list[tuple[PlacedFrame, bytes]]:
            return [
                (
                    each,
                    expand(stored[each.stored_at - begin :][: each.frame.stored_bytes], each.frame),
                )
                for each in run
            ]

        return await asyncio.to_thread(expanded)

    async def _index(self, info: ObjectInfo) -> ChunkIndex | None:
        if info.key in self._indexes:
            self._indexes.move_to_end(info.key)
            return self._indexes[info.key]
        index = None
        async with self._turns:
            try:
                tail, size = await self._objects.read_end(info.key, TAIL_BYTES)
                if index_size(tail) > len(tail):
                    tail, size = await self._objects.read_end(info.key, index_size(tail))
                index = read_index(tail, size)
            except (BadChunk, NoObject):
                # Not ours, or being removed: what is no chunk is not shown as one.
                pass
        self._indexes[info.key] = index
        while len(self._indexes) > _MOST_INDEXES:
            self._indexes.popitem(last=False)
        return index


def _runs(frames: list[PlacedFrame]) -> list[list[PlacedFrame]]:
    """Frames side by side are read together, up to a size."""
    runs: list[list[PlacedFrame]] = []
    for each in frames:
        if runs and each.stored_at + each.frame.stored_bytes - runs[-1][0].stored_at <= (
            _MOST_READ_BYTES
        ):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs
