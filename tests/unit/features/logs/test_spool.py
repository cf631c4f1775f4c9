"""A stream's spool under every order of writes, kills, truncations and acknowledgements.

The law: whatever happens between any two writes, what is in the store and in the spool, one after
the other, is what was read of the file, each byte once and in order; and every byte that was in
the file when it was last looked at is there.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lattice.base import failpoints
from lattice.domain.job_seal import JobSeal
from lattice.domain.logchunk import ChunkIndex, compress, frames_of, verify
from lattice.domain.logs import GapCause, LogKind, LogSource, Position
from lattice.features.logs.node import openchunk, spool
from lattice.features.logs.node.capture import Stream
from lattice.features.logs.node.compressor import StartCompression, compress_now
from lattice.features.logs.node.openchunk import OpenChunk
from lattice.features.logs.node.spool import StoredChunk, StreamHead, StreamSpool
from lattice.features.logs.node.stream_seal import StreamSeal
from lattice.features.logs.node.tail import MOST_AT_ONCE, FileTail
from lattice.features.logs.service.job_seals import opened_chunk
from tests.nesting import DEEP

PLAIN = StreamSeal(None, "n1", LogKind.STDOUT, "batch")
HEAD = StreamHead(node="n1", job_id=7, started=1.5, kind=LogKind.STDOUT, source=LogSource("batch"))
FAILPOINTS = (
    "spool.mark.written",
    "spool.tail.written",
    "spool.gap.written",
    "spool.frame.written",
    "spool.frame.indexed",
    "spool.tail.cleared",
    "spool.open.cleared",
    "spool.chunk.sealed",
    "spool.chunk.synced",
    "spool.chunk.renamed",
    "spool.stored.written",
    "spool.chunk.dropped",
)


class Killed(BaseException):
    """The process ends here."""


class LateFrame(Future[bytes]):
    """A frame that is not compressed before somebody waits for it."""

    def __init__(self, text: bytes, *, sensitive: bool = False) -> None:  # noqa: ARG002
        super().__init__()
        self._text = text

    def result(self, timeout: float | None = None) -> bytes:  # noqa: ARG002 - as `Future` has it
        return compress(self._text)


class Writer:
    """A job that writes to its file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out"
        self.path.write_bytes(b"")

    def write(self, text: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text)


class Spooling(RuleBasedStateMachine):
    """One stream, its file, its spool and the store."""

    seal: JobSeal | None = None

    def __init__(self) -> None:
        super().__init__()
        self._room = TemporaryDirectory()
        self.folder = Path(self._room.name)
        self.armed = ""
        self._before = failpoints.failpoint
        for module in (openchunk, spool):
            module.failpoint = self._failpoint  # type: ignore[attr-defined]
        self.writer = Writer(self.folder)
        self.now_ms = 1_700_000_000_000
        self.store = b""
        self.chunks: list[ChunkIndex] = []
        self.expected = b""
        """Every byte that was in the file at a look, over all its lives."""
        self.unread_in_file = b""
        self.number = 0
        self.start: StartCompression = compress_now

    def teardown(self) -> None:
        for module in (openchunk, spool):
            module.failpoint = self._before  # type: ignore[attr-defined]
        self.stream.tail.close()
        self.stream.spool.close()
        self._room.cleanup()

    def _failpoint(self, name: str) -> None:
        if name == self.armed:
            self.armed = ""
            raise Killed

    @initialize()
    def begin(self) -> None:
        self._start()

    def _start(self) -> None:
        kept = StreamSpool(self.folder / "spool", HEAD, seal=self.seal)
        descriptor = os.open(self.writer.path, os.O_RDONLY)
        tail = FileTail(descriptor, kept.mark, kept.end.offset, kept.seal.digest_key)
        self.stream = Stream(tail, kept, late=False)

    def _act(self, act: object) -> None:
        assert callable(act)
        try:
            act()
        except Killed:
            self._restart()

    def _restart(self) -> None:
        self.stream.tail.close()
        self.stream.spool.close()
        while True:
            try:
                self._start()
            except Killed:
                continue
            return

    @rule(size=st.sampled_from([0, 1, 7, 100, 5000, 262_143, 262_144, 300_000]))
    def write(self, size: int) -> None:
        self.number += 1
        # Nothing tells a file from one that was truncated and begins alike.
        line = bytes([48 + self.number]) + b":" + b"x" * 40 + b"\n"
        text = line * (size // len(line) + 1)
        text = text[:size]
        self.writer.write(text)
        self.unread_in_file += text

    @rule()
    def look(self) -> None:
        self._act(self._advance)

    def _advance(self) -> None:
        self.now_ms += 10
        while self.stream.advance(self.now_ms, 1 << 20, self.start) is not None:
            pass

    @rule(start=st.sampled_from((compress_now, LateFrame)))
    def compress_by(self, start: StartCompression) -> None:
        self.start = start

    @rule()
    def read_once(self) -> None:
        """As a capture does: what it read last may still be compressed."""
        self._act(self._read_once)

    def _read_once(self) -> None:
        self.now_ms += 10
        if self.stream.advance(self.now_ms, MOST_AT_ONCE, self.start) is not None:
            self.stream.spool.start_full_frame(self.start)

    @rule()
    def look_then_truncate(self) -> None:
        """Everything was read before: nothing may be lost."""
        self._act(self._advance)
        self._drain()
        self.writer.path.write_bytes(b"")

    def _drain(self) -> None:
        while True:
            try:
                self._advance()
            except Killed:
                self._restart()
                continue
            break
        self.expected += self.unread_in_file
        self.unread_in_file = b""

    @rule()
    def close_chunk(self) -> None:
        self._act(self.stream.spool.close_chunk)

    @rule()
    def store_oldest(self) -> None:
        def act() -> None:
            waiting = self.stream.spool.closed()
            if not waiting:
                return
            number, path = waiting[0]
            sent, _ = self.stream.spool.read_closed(number, path)
            content = opened_chunk(self.seal, "n1", "stdout", "batch", number, sent)
            index = verify(content)
            if not self.chunks or index.begin == self.chunks[-1].end:
                assert index.before == len(self.chunks)
                # A number that is taken by the same content is success: stored once.
                self.store += b"".join(text for _, text in frames_of(content, index))
                self.chunks.append(index)
            end = index.end
            stored = StoredChunk(number, end.offset, end.line, index.last, len(self.chunks))
            self.stream.spool.took(number, stored)

        self._act(act)

    @rule(name=st.sampled_from(FAILPOINTS))
    def arm(self, name: str) -> None:
        self.armed = name

    @rule()
    def kill(self) -> None:
        self._restart()

    @precondition(lambda self: not self.armed)
    @rule()
    def count(self) -> None:
        self._drain()
        end = self.stream.spool.end
        assert end.offset == len(self.expected)
        assert end.line == self.expected.count(b"\n")

    @invariant()
    def nothing_is_lost_doubled_or_out_of_place(self) -> None:
        if not hasattr(self, "stream"):
            return
        whole = self.store
        while pieces := self.stream.spool.pieces(len(whole)):
            assert pieces[0].at.line == whole.count(b"\n")
            whole += b"".join(each.text for each in pieces)
        assert (self.expected + self.unread_in_file).startswith(whole)
        assert len(whole) == max(self.stream.spool.end.offset, len(self.store))
        self.check_disk()

    def check_disk(self) -> None:
        """What a sealed stream adds to this."""


Spooling.TestCase.settings = settings(stateful_step_count=25)
TestSpooling = pytest.mark.spec("LOG-3")(Spooling.TestCase)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


@pytest.fixture
def stream(tmp_path: Path, writer: Writer) -> Iterator[Stream]:
    kept = StreamSpool(tmp_path / "spool", HEAD)
    found = Stream(FileTail(os.open(writer.path, os.O_RDONLY), None, 0), kept, late=False)
    yield found
    found.tail.close()
    kept.close()


def text_of(stream: Stream) -> bytes:
    whole = b""
    while pieces := stream.spool.pieces(len(whole)):
        whole += b"".join(each.text for each in pieces)
    return whole


def look(stream: Stream, now_ms: int = 1000) -> None:
    while stream.advance(now_ms, 1 << 20) is not None:
        pass


@pytest.mark.spec("LOG-3")
def test_truncated_and_regrown_past_the_old_place(stream: Stream, writer: Writer) -> None:
    writer.write(b"old\n" * 100)
    look(stream)
    writer.path.write_bytes(b"")
    writer.write(b"new\n" * 200)
    look(stream)
    assert text_of(stream) == b"old\n" * 100 + b"new\n" * 200
    stream.spool.close_chunk()
    ((_, path),) = stream.spool.closed()
    (gap,) = verify(path.read_bytes()).gaps
    assert (gap.at, gap.cause) == (Position(400, 100), GapCause.TRUNCATED)


@pytest.mark.spec("LOG-3")
def test_what_was_seen_and_not_read_is_counted_when_it_is_lost(
    stream: Stream, writer: Writer
) -> None:
    writer.write(b"x" * 1000)
    assert stream.advance(1, 400) is not None
    writer.path.write_bytes(b"")
    look(stream)
    stream.spool.close_chunk()
    ((_, path),) = stream.spool.closed()
    (gap,) = verify(path.read_bytes()).gaps
    assert gap.lost_bytes == 600


@pytest.mark.spec("LOG-3")
def test_a_writer_that_does_not_append_leaves_a_hole_that_is_no_text(
    stream: Stream, writer: Writer
) -> None:
    with writer.path.open("wb") as file:
        file.write(b"a" * 200_000)
        file.flush()
        look(stream)
        os.truncate(writer.path, 0)
        look(stream)
        file.write(b"after\n")
        file.flush()
        look(stream)
    assert text_of(stream) == b"a" * 200_000 + b"after\n"


@pytest.mark.spec("LOG-3")
def test_renamed_and_deleted_files_are_read_on(stream: Stream, writer: Writer) -> None:
    writer.write(b"one\n")
    with writer.path.open("ab") as file:
        writer.path.rename(writer.path.with_name("moved"))
        file.write(b"two\n")
        file.flush()
        writer.path.with_name("moved").unlink()
        file.write(b"three\n")
        file.flush()
        look(stream)
    assert text_of(stream) == b"one\ntwo\nthree\n"


def test_a_node_that_lost_what_it_knew_goes_on_where_the_store_ends(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(b"stored\n")
    kept = StreamSpool(tmp_path / "spool", HEAD, StoredChunk(1, 7, 1))
    tail = FileTail(os.open(writer.path, os.O_RDONLY), kept.mark, kept.end.offset)
    stream = Stream(tail, kept, late=True)
    assert stream.advance(1_700_000_000_000, 1 << 20) is None
    writer.write(b"new\n")
    added = stream.advance(1_700_000_000_001, 1 << 20)
    tail.close()
    kept.close()
    assert added is not None
    assert (added.at, added.text) == (Position(7, 1), b"new\n")


def test_a_file_gives_again_what_it_still_has_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"first line\n" * 200)
    tail = FileTail(os.open(file, os.O_RDONLY), None, 0)
    tail.read()
    assert tail.read_again(11, 22) == b"first line\n" * 2
    assert tail.read_again(11 * 199, 22) == b"", "not more than was written"
    file.write_bytes(b"other text\n" * 300)
    assert tail.read_again(11, 22) == b"", "another file by now"
    assert tail.read().anew
    tail.read()
    assert tail.read_again(11, 22) == b"", "of its life before"
    tail.close()
    assert tail.read_again(2200, 11) == b""


ENTRY = b'{"type":"frame","offset":0,"frame":[%d,8,%s]}\n'
GAP = b'{"type":"gap","offset":0,"line":0,"cause":"%s","lost_bytes":null,"time_ms":%s}\n'


@pytest.mark.parametrize(
    "index",
    [
        ENTRY.replace(b"%s", b"2,[]"),
        ENTRY.replace(b"%s", b"2,[8]"),
        ENTRY.replace(b"%s", b"2,[7,5]"),
        ENTRY.replace(b"%s", b"2,[8,999999999999999]"),
        ENTRY.replace(b"%s", b"5,[8,5]"),
        ENTRY.replace(b"%s", b"2,[8,5],false," + DEEP),
    ],
    ids=["no marks", "half a mark", "short marks", "no date", "other lines", "deep"],
)
def test_a_frame_whose_entry_was_torn_is_read_again(tmp_path: Path, index: bytes) -> None:
    stored = compress(b"one\ntwo\n")
    (tmp_path / "open.frames").write_bytes(stored)
    (tmp_path / "open.index").write_bytes(index % len(stored))
    with closing(OpenChunk(tmp_path, Position(), PLAIN)) as chunk:
        assert (chunk.end, chunk.frames) == (Position(), [])
        chunk.add(b"one\n", 1000)
        assert [each.text for each in chunk.pieces(0)] == [b"one\n"]


def test_a_frame_that_is_shorter_than_its_entry_says_is_read_again(tmp_path: Path) -> None:
    stored = compress(b"one\ntwo\n")
    (tmp_path / "open.frames").write_bytes(stored)
    (tmp_path / "open.index").write_bytes(ENTRY % (len(stored) + 1, b"2,[8,5]"))
    with closing(OpenChunk(tmp_path, Position(), PLAIN)) as chunk:
        assert (chunk.end, chunk.frames) == (Position(), [])


@pytest.mark.parametrize(
    "index", [GAP % (b"\xff\xfe", b"5"), GAP % (b"quota", b"-5"), GAP % (b"quota", b"9" * 30)]
)
def test_a_gap_whose_entry_was_torn_is_left_out(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "open.index").write_bytes(index)
    with closing(OpenChunk(tmp_path, Position(), PLAIN)) as chunk:
        assert chunk.gaps == []


def test_a_tail_without_a_date_is_read_again(tmp_path: Path) -> None:
    record = struct.pack("<QQIIB", 0, 2**60, 3, zlib.crc32(b"abc"), 0) + b"abc"
    (tmp_path / "open.tail").write_bytes(record)
    with closing(OpenChunk(tmp_path, Position(), PLAIN)) as chunk:
        assert chunk.end == Position()
