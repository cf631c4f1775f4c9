"""Where chunks overlap, what was stored first stays, whatever comes later and under which name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.attempts import attempts_of
from lattice.domain.logchunk import index_frame, read_index
from lattice.domain.logs import Gap, GapCause, LogKind, Position
from lattice.features.logs.service.archive import Archive, Span
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.ranges import ChunkRange, Resolved
from lattice.features.logs.service.stored import StoredStream
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.manual_clock import ManualClock
from tests.unit.domain.test_logchunk import chunk_of

_JOB = allocation(7, "alice", "research", nodes="n1")
NAME = AttemptName(_JOB, attempts_of(_JOB)[0])
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Sent:
    """A chunk by its offset and its letter, which tells it from the others."""

    begin: int
    size: int
    letter: bytes
    last: bool = False

    @property
    def content(self) -> bytes:
        texts = [self.letter * self.size] if self.size else []
        return chunk_of(*texts, offset=self.begin, last=self.last)


class Store:
    """Chunks stored one after the other, under any numbers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.objects = InMemoryObjectStore(self.clock)

    async def put(self, sent: Sent | bytes, number: int) -> None:
        content = sent if isinstance(sent, bytes) else sent.content
        assert await self.objects.put_new(NAME.chunk_key(LogKind.STDOUT, "n1", number), content)
        self.clock.advance(1)

    async def stream(self, span: Span | None = None) -> StoredStream:
        found = await Archive(self.objects).streams(NAME, (LogKind.STDOUT,), (), span)
        (stream,) = found.values()
        return stream

    async def text(self, begin: int = 0, span: Span | None = None) -> bytes:
        stream = await self.stream(span)
        archive = Archive(self.objects)
        pieces = b"".join([each.text async for each in archive.pieces(stream, begin)])
        texts = [each async for each in archive.texts(stream, begin, stream.end.offset)]
        assert b"".join(texts) == pieces
        return pieces


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("node-key")
async def test_a_later_chunk_never_replaces_what_was_stored_first() -> None:
    """Attack 35."""
    store = Store()
    await store.put(chunk_of(b"accuracy 0.912\n", last=True), 5)
    await store.put(chunk_of(b"accuracy 0.500\n", last=True), 1)
    assert await store.text() == b"accuracy 0.912\n"


@pytest.mark.spec("LOG-3")
async def test_a_later_chunk_that_covers_an_earlier_one_adds_what_is_around_it() -> None:
    store = Store()
    await store.put(Sent(10, 10, b"a"), 2)
    await store.put(Sent(0, 30, b"b"), 1)
    assert await store.text() == b"b" * 10 + b"a" * 10 + b"b" * 10
    assert await store.text(15) == b"a" * 5 + b"b" * 10


@pytest.mark.spec("LOG-3")
async def test_a_sealed_stream_ends_where_its_last_chunk_does() -> None:
    store = Store()
    await store.put(Sent(10, 10, b"a", last=True), 1)
    await store.put(Sent(20, 10, b"b"), 2)
    await store.put(Sent(15, 10, b"c", last=True), 3)
    await store.put(Sent(0, 12, b"d"), 4)
    stream = await store.stream()
    assert (stream.end.offset, stream.last) == (20, True)
    assert await store.text() == b"d" * 10 + b"a" * 10


@pytest.mark.spec("LOG-3")
async def test_a_gap_of_a_later_chunk_in_stored_text_is_not_believed() -> None:
    store = Store()
    real = Gap(Position(4, 1), GapCause.TRUNCATED, 9, 1000)
    forged = Gap(Position(2, 0), GapCause.DELETED, 99, 1000)
    await store.put(chunk_of(b"one\n", gaps=(real,)), 1)
    await store.put(chunk_of(b"no!\n", gaps=(forged,)), 2)
    assert (await store.stream()).gaps == (real,)


@pytest.mark.spec("LOG-3")
async def test_a_node_that_reads_again_ends_its_stream_with_what_is_stored_already() -> None:
    store = Store()
    await store.put(Sent(0, 10, b"a"), 1)
    await store.put(Sent(0, 10, b"a", last=True), 2)
    stream = await store.stream()
    assert (stream.end.offset, stream.last) == (10, True)


@pytest.mark.spec("LOG-3", "LOG-6")
@pytest.mark.threat("node-key")
@pytest.mark.parametrize("forged", [Sent(0, 5, b"f", last=True), Sent(90, 40, b"f", last=True)])
async def test_a_forged_chunk_at_the_end_of_many_hides_and_replaces_nothing(forged: Sent) -> None:
    """It counts on from the last one, so that the folder seems to be in order."""
    store = Store()
    for number in range(10):
        sent = Sent(10 * number, 10, b"%d" % number, last=number == 9)
        await store.put(_counted(sent.content, number), number + 1)
    await store.put(_counted(forged.content, 10), 11)
    whole = b"".join(b"%d" % number * 10 for number in range(10))
    for begin in (0, 35, 95):
        assert await store.text(begin, Span(offset=begin)) == whole[begin:]


def _counted(content: bytes, before: int) -> bytes:
    """The same chunk with its count."""
    index = read_index(content, len(content))
    return content[: index.stored_bytes] + index_frame(
        msgspec.structs.replace(index, before=before)
    )


SENT = st.lists(
    st.builds(
        Sent,
        begin=st.integers(0, 30),
        size=st.integers(0, 20),
        letter=st.sampled_from([b"a", b"b", b"c", b"d"]),
        last=st.booleans(),
    ),
    max_size=8,
)


def _chunks(sent: list[Sent]) -> list[ChunkRange]:
    chunks = []
    for number, each in enumerate(sent):
        content = each.content
        index = read_index(content, len(content))
        key = f"chunk_{(7 * number) % 11:06d}"
        chunks.append(ChunkRange(key, index, BEGAN + timedelta(seconds=number)))
    return chunks


@pytest.mark.spec("LOG-3")
@given(SENT)
def test_each_byte_is_that_of_the_chunk_that_brought_it_first(sent: list[Sent]) -> None:
    owner: dict[int, bytes] = {}
    sealed: int | None = None
    for each in sent:
        end = each.begin + each.size
        for offset in range(each.begin, end):
            if sealed is None or offset < sealed:
                owner.setdefault(offset, each.letter)
        reached = max(owner, default=-1) + 1
        if each.last and sealed is None and end >= reached and _is_furthest(sent, each):
            sealed = end
    found: dict[int, bytes] = {}
    resolved = Resolved(_chunks(sent))
    for part in resolved.ranges:
        letter = sent[int((part.chunk.stored - BEGAN).total_seconds())].letter
        for offset in range(part.begin, part.end):
            assert offset not in found
            found[offset] = letter
    assert (found, resolved.sealed) == (owner, sealed)


def _is_furthest(sent: list[Sent], last: Sent) -> bool:
    """True if none before it, of any size, ended further on."""
    before = sent[: next(number for number, each in enumerate(sent) if each is last)]
    return all(each.begin + each.size <= last.begin + last.size for each in before)


@given(SENT, SENT)
def test_what_is_stored_later_changes_nothing_of_what_was_there(
    first: list[Sent], later: list[Sent]
) -> None:
    before = Resolved(_chunks(first))
    after = Resolved(_chunks([*first, *later]))

    def owners(resolved: Resolved) -> dict[int, str]:
        return {
            offset: part.chunk.key
            for part in resolved.ranges
            for offset in range(part.begin, part.end)
        }

    assert owners(before).items() <= owners(after).items()
    assert before.sealed is None or before.sealed == after.sealed
