"""Finding a range among very many chunks: the same text as by looking at all, for far less."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.attempts import attempts_of
from lattice.domain.logchunk import ChunkIndex, Frame, compress, gap_records, index_frame
from lattice.domain.logs import Gap, GapCause, LogKind, Position
from lattice.features.logs.service.archive import Archive, Span
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.stored import StoredStream
from lattice.features.logs.service.view import Item, StreamView, ViewStart
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.manual_clock import ManualClock

STEP_MS = 1000
_JOB = allocation(7, "alice", "research", nodes="n1")
NAME = AttemptName(_JOB, attempts_of(_JOB)[0])


@dataclass
class Written:
    """A stream that is being written: `chunk` adds one of so many lines to the store."""

    objects: InMemoryObjectStore
    source: str = "batch"
    counted: bool = True
    at: Position = field(default_factory=Position)
    chunks: int = 0
    now_ms: int = 1_000_000

    async def chunk(
        self, number: int, frames: Iterable[int], *, gap: bool = False, last: bool = False
    ) -> None:
        begin, kept, stored = self.at, [], b""
        gaps = [Gap(begin, GapCause.TRUNCATED, 9, self.now_ms)] if gap else []
        for lines in frames:
            text = b"".join(
                b"%s line %d\n" % (self.source.encode(), self.at.line + each)
                for each in range(lines)
            )
            self.now_ms += STEP_MS
            packed = compress(text)
            kept.append(Frame(len(packed), len(text), lines, (len(text), self.now_ms)))
            stored += packed
            self.at = self.at.past(text)
        index = ChunkIndex(
            node="n1",
            job_id=7,
            started=1.0,
            kind=LogKind.STDOUT,
            source=self.source,
            offset=begin.offset,
            line=begin.line,
            frames=tuple(kept),
            gap_records=gap_records(gaps),
            last=last,
            before=self.chunks if self.counted else None,
            sha256=hashlib.sha256(stored).hexdigest(),
        )
        self.chunks += 1
        await self.objects.put(
            NAME.chunk_key(LogKind.STDOUT, "n1", number), stored + index_frame(index)
        )


async def written(count: int, frames: int = 3, *, counted: bool = True) -> InMemoryObjectStore:
    objects = InMemoryObjectStore(ManualClock())
    stream = Written(objects, counted=counted)
    for number in range(1, count + 1):
        await stream.chunk(number, [5] * frames, last=number == count)
    return objects


async def lone(archive: Archive, span: Span | None) -> StoredStream:
    (stream,) = (await archive.streams(NAME, (LogKind.STDOUT,), (), span)).values()
    return stream


async def seen(archive: Archive, stream: StoredStream, span: Span) -> list[Item]:
    """What a view shows of a span."""
    view = StreamView(stream.name, archive, stream, None)
    line = 0 if span.tail is None else max(0, view.end.line - span.tail)
    view.begin(
        ViewStart(line=line, offset=span.offset, time_ms=span.since_ms, until_ms=span.until_ms)
    )
    return [each async for each in view.items(view.end.offset)]


CHUNKS = st.lists(
    st.tuples(st.lists(st.integers(1, 4), max_size=4), st.booleans()), min_size=1, max_size=24
)
TIMES = st.integers(990_000, 1_000_000 + 100 * STEP_MS)
SPANS = st.builds(
    Span,
    since_ms=st.just(0) | TIMES,
    until_ms=st.none() | TIMES,
    offset=st.just(0) | st.integers(0, 4000),
    tail=st.none() | st.integers(0, 200),
)


@pytest.mark.spec("LOG-6")
@given(CHUNKS, SPANS)
async def test_a_searched_range_shows_what_a_look_at_all_shows(
    chunks: list[tuple[list[int], bool]], span: Span
) -> None:
    objects = InMemoryObjectStore(ManualClock())
    stream = Written(objects)
    for number, (frames, gap) in enumerate(chunks, 1):
        last = number == len(chunks)
        await stream.chunk(number, frames, gap=gap or not (frames or last), last=last)
    archive = Archive(objects)
    whole = await lone(archive, None)
    found = await lone(Archive(objects), span)
    assert (found.end, found.last, found.name) == (whole.end, whole.last, whole.name)
    assert await seen(Archive(objects), found, span) == await seen(archive, whole, span)


@pytest.mark.spec("LOG-6")
async def test_few_of_many_indexes_are_read() -> None:
    objects = await written(500)
    archive = Archive(objects)
    span = Span(since_ms=1_000_000 + 900 * STEP_MS, until_ms=1_000_000 + 905 * STEP_MS)
    stream = await lone(archive, span)
    assert objects.reads < 25
    items = await seen(archive, stream, span)
    assert {item.time_ms for item in items} == {1_000_000 + n * STEP_MS for n in range(900, 906)}
    assert objects.reads < 32


@pytest.mark.spec("LOG-6")
async def test_a_page_from_a_place_reads_no_other_text() -> None:
    objects = await written(200)
    archive = Archive(objects)
    stream = await lone(archive, Span())
    middle = stream.end.offset // 2
    pieces = archive.pieces(stream, middle)
    piece = await anext(pieces)
    assert piece.at.offset == middle
    assert objects.reads < 20


@pytest.mark.spec("LOG-3")
@given(st.lists(st.integers(0, 2), min_size=5, max_size=20), st.booleans())
async def test_streams_that_share_a_folder_are_all_found(turns: list[int], counted: bool) -> None:
    """The server puts a chunk at the next free number, whosever it is."""
    objects = InMemoryObjectStore(ManualClock())
    writers = [Written(objects, f"0.{task}", counted=counted) for task in range(3)]
    for number, turn in enumerate(turns, 1):
        await writers[turn].chunk(number, [2])
    span = Span(since_ms=1_000_000 + 3 * STEP_MS)
    found = await Archive(objects).streams(NAME, LogKind, (), span)
    assert {str(name.source): stream.end for name, stream in found.items()} == {
        each.source: each.at for each in writers if each.chunks
    }


async def test_a_stream_that_lost_count_is_looked_at_whole() -> None:
    objects = await written(20, counted=False)
    stream = await lone(Archive(objects), Span(tail=1))
    assert (len(stream.chunks), stream.objects) == (20, ())


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("is_there", [True, False])
async def test_an_object_that_is_damaged_or_gone_is_a_gap_and_not_the_end(is_there: bool) -> None:
    objects = await written(9)
    key = NAME.chunk_key(LogKind.STDOUT, "n1", 4)
    if is_there:
        await objects.put(key, b"noise")
    else:
        await objects.delete(key)
    archive = Archive(objects)
    stream = await lone(archive, Span())
    items = await seen(archive, stream, Span())
    gaps = [each for each in items if isinstance(each, Gap)]
    assert [each.cause for each in gaps] == [GapCause.UNREADABLE]
    chunk = stream.chunks[3].index
    assert gaps[0].lost_bytes == chunk.offset - stream.chunks[2].index.end.offset
    last = items[-1]
    assert not isinstance(last, Gap)
    assert last.end == stream.end
