"""A node's feed: pushed once, never ahead of itself, complete however slow the server is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.grants import GrantSigner
from lattice.base.clock import SystemClock
from lattice.base.errors import NotFound
from lattice.base.signatures import SigningKey
from lattice.domain.attempts import attempts_of
from lattice.domain.logs import GapCause, LogKind, LogSource, Piece, Position, StreamName
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.stream import StreamQuestion
from lattice.features.logs.model import NoteKind
from lattice.features.logs.node import waiting_text
from lattice.features.logs.node.capture import Added
from lattice.features.logs.node.feed import LogFeed
from lattice.features.logs.node.feedmessages import add_piece, in_parts, pushed_message
from lattice.features.logs.node.spool import SpoolReader, StoredChunk, StreamHead, StreamSpool
from lattice.features.logs.node.tail import NoTail
from lattice.features.logs.render.marks import gap_mark, note_mark
from lattice.features.logs.service import records
from lattice.features.logs.service.live_feeds import Feeds, NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.notices import LogNotices
from lattice.features.logs.service.wakeups import Rounds
from lattice.observe.node_questions import NoAnswer
from lattice.wire.v1 import logs_pb2 as pb
from tests.fakes.cluster import allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by

HEAD = StreamHead(node="n1", job_id=7, started=1.5, kind=LogKind.STDOUT, source=LogSource("batch"))
OPENING = msgspec.json.encode({"job_id": 7, "started": 1.5})
KEY = (LogKind.STDOUT, LogSource("batch"))
NAME = StreamName("n1", *KEY)


class Server:
    """The other end of a session; `slow` until it is let go."""

    def __init__(self, *, slow: bool = False) -> None:
        self.heard: list[pb.FeedTell] = []
        self.ready = asyncio.Event()
        self.questions: asyncio.Queue[bytes] = asyncio.Queue()
        self.tried = 0
        self._sends = asyncio.Event()
        self._news = asyncio.Event()
        if not slow:
            self.ready.set()

    async def send(self, payload: bytes, *, last: bool = False) -> None:  # noqa: ARG002 - the port
        self._sends.set()
        await self.ready.wait()
        assert len(payload) <= LARGEST_MESSAGE_BYTES
        self.heard.append(pb.FeedTell.FromString(payload))
        self._news.set()

    async def until_sender_waits(self) -> None:
        self._sends.clear()
        async with asyncio.timeout(60):
            await self._sends.wait()

    def try_send(self, payload: bytes) -> bool:
        self.tried += 1
        if not self.ready.is_set():
            return False
        assert len(payload) <= LARGEST_MESSAGE_BYTES
        self.heard.append(pb.FeedTell.FromString(payload))
        self._news.set()
        return True

    async def receive(self) -> bytes | None:
        return await self.questions.get()

    async def until(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not wanted():
                self._news.clear()
                await self._news.wait()

    @property
    def pieces(self) -> list[pb.FeedPiece]:
        return [each for tell in self.heard for each in tell.pushed.pieces]

    @property
    def fetched(self) -> list[pb.FeedText]:
        return [each.fetched for each in self.heard if each.HasField("fetched")]

    @property
    def text(self) -> bytes:
        return b"".join(each.text for each in self.pieces)


class Capture:
    """What the feed needs of a job's capture; `write` is the capture's thread."""

    def __init__(self, folder: Path) -> None:
        self.spool = StreamSpool(folder, HEAD)
        self.streams = (SimpleNamespace(spool=self.spool, tail=NoTail(None, 0), trouble=""),)
        self.over = False
        self.listeners: list[Any] = []

    def listen(self, listener: Any) -> None:
        self.listeners.append(listener)

    def unlisten(self, listener: Any) -> None:
        self.listeners.remove(listener)

    def write(self, text: bytes, time_ms: int = 1000) -> None:
        at = self.spool.end
        self.spool.add(text, time_ms)
        packed = self.spool.start_full_frame()
        self.tell(Added(*KEY, at, text, text.count(b"\n"), time_ms, late=False, packed=packed))

    def tell(self, added: Added | None) -> None:
        for each in self.listeners:
            each(added)


def life(capture: Any, started: float = 1.5) -> SimpleNamespace:
    identity = SimpleNamespace(job_id=7, started=started)
    return SimpleNamespace(identity=identity, capture=capture, trouble="", noticed_late=False)


class FeedingNodes:
    """The port `NodeStreams` in front of a real feed."""

    def __init__(self, feed: LogFeed) -> None:
        self._feed = feed
        self.asked: list[Any] = []

    def linked_to(self, node: str) -> str:
        return node and "r1"

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        self.asked.append(msgspec.json.decode(question.opening))
        async with answered_by(self._feed, question.opening) as carrier:
            yield carrier


async def fed(capture: Capture, server: Server, job: Callable[[], Any]) -> None:
    """Run the feed while a job writes."""
    followed = life(capture)
    serving = asyncio.create_task(LogFeed(lambda: (followed,))(server, OPENING))
    try:
        while not capture.listeners:
            await asyncio.sleep(0)
        await job()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        capture.spool.close()


async def test_what_is_on_its_way_is_not_told_of_before(tmp_path: Path) -> None:
    """Else the server would ask for it, and have it twice."""
    capture, server = Capture(tmp_path), Server()

    async def writes() -> None:
        await server.until(lambda: bool(server.heard))
        for number in range(200):
            capture.write(b"line %d\n" % number, 1000 + number)
            if number % 7 == 0:
                await asyncio.sleep(0)
        await server.until(lambda: server.text.endswith(b"line 199\n"))

    await fed(capture, server, writes)
    known = 0
    for tell in server.heard:
        for each in tell.pushed.pieces:
            assert each.offset == known
            known += len(each.text)
        for stream in tell.streams.streams:
            assert stream.offset <= known
    assert server.text == b"".join(b"line %d\n" % number for number in range(200))
    assert [each.time_ms for each in server.pieces] == list(range(1000, 1200)), "each its moment"
    told = [each for each in server.heard if each.HasField("streams")]
    assert len(told) <= 3, "how far it goes is told by the text"


async def test_text_is_sent_at_once_if_nothing_is_before_it(tmp_path: Path) -> None:
    capture, server = Capture(tmp_path), Server()

    async def writes() -> None:
        capture.write(b"first\n")
        await server.until(lambda: server.text == b"first\n")
        while not server.tried:
            # Until the feed waits for more, text goes through its queue.
            capture.write(b"next\n")
            await asyncio.sleep(0)
        written = server.text
        capture.write(b"at once\n")
        await asyncio.sleep(0)
        assert server.text == written + b"at once\n"

    await fed(capture, server, writes)
    assert server.text == b"".join(each.text for each in capture.spool.pieces(0))
    assert [each.offset for each in server.pieces] == sorted(each.offset for each in server.pieces)


async def test_text_waits_for_its_turn_behind_an_answer(tmp_path: Path) -> None:
    """Otherwise a job that writes without end could delay answers without end."""
    capture, server = Capture(tmp_path), Server()

    async def writes() -> None:
        capture.write(b"first\n")
        await server.until(lambda: server.text == b"first\n")
        while not server.tried:
            capture.write(b"next\n")
            await asyncio.sleep(0)
        server.ready.clear()
        ask = pb.FeedAsk(id=1, kind="stdout", source="batch", offset=0)
        server.questions.put_nowait(ask.SerializeToString())
        await server.until_sender_waits()
        tried = server.tried
        capture.write(b"behind\n")
        await asyncio.sleep(0)
        assert server.tried == tried
        server.ready.set()
        await server.until(lambda: server.text.endswith(b"behind\n"))

    await fed(capture, server, writes)
    order = [each.WhichOneof("tell") for each in server.heard]
    assert order.index("fetched") < len(order) - 1


@given(
    st.lists(
        st.builds(
            Piece,
            st.builds(Position, st.integers(0, 2**63), st.integers(0, 2**63)),
            st.integers(0, 2**50),
            st.booleans(),
            st.one_of(st.binary(max_size=300), st.sampled_from((b"x" * 127, b"x" * 70_000))),
        ),
        max_size=5,
    ),
    st.sampled_from(LogKind),
    st.sampled_from(("batch", "0.3", "12+4.1~2")),
)
def test_a_pushed_message_is_the_protobuf_message(
    pieces: list[Piece], kind: LogKind, source: str
) -> None:
    tell = pb.FeedTell.FromString(pushed_message(kind, LogSource.parse(source), pieces))
    wanted = pb.FeedTell()
    wanted.pushed.kind, wanted.pushed.source = kind.value, source
    for each in pieces:
        add_piece(wanted.pushed, each)
    assert tell == wanted


@pytest.mark.spec("LOG-3")
async def test_a_gap_is_told_before_what_comes_behind_it(tmp_path: Path) -> None:
    capture, server = Capture(tmp_path), Server()

    async def writes() -> None:
        capture.write(b"before\n")
        await server.until(lambda: server.text == b"before\n")
        capture.spool.add_gap(GapCause.TRUNCATED, 12, 2000)
        capture.spool.close_chunk()
        capture.tell(None)
        capture.write(b"behind\n", 2000)
        await server.until(lambda: server.text.endswith(b"behind\n"))

    await fed(capture, server, writes)
    order = [
        [(gap.offset, gap.cause, gap.lost_bytes) for gap in stream.gaps]
        or bytes(b"".join(each.text for each in tell.pushed.pieces))
        for tell in server.heard
        for stream in (tell.streams.streams or [pb.FeedStream()])
    ]
    gap, text = [(7, "truncated", 12)], b"behind\n"
    assert order.index(gap) < order.index(text), order
    node = NodeFeed(*[None] * 6)  # type: ignore[arg-type]
    for tell in server.heard:
        node._take(tell)
    assert [(each.at.offset, each.lost_bytes) for each in node.streams[KEY].gaps] == [(7, 12)]


def test_very_many_streams_of_long_names_are_told_in_parts() -> None:
    streams = [
        pb.FeedStream(kind="stdout", source=f"0.{rank}", path="/" + "x" * 4000)
        for rank in range(300)
    ]
    parts = list(in_parts(pb.FeedStreams(streams=streams, over=True)))
    assert [each.source for part in parts for each in part.streams] == [
        each.source for each in streams
    ]
    assert all(part.ByteSize() < LARGEST_MESSAGE_BYTES for part in parts)
    assert [part.over for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.spec("LOG-2")
async def test_what_a_stream_is_is_told_before_its_text(tmp_path: Path) -> None:
    """Else the first of its lines would be nobody's."""
    capture, server = Capture(tmp_path), Server()
    (found,), capture.streams = capture.streams, ()

    async def writes() -> None:
        await server.until(lambda: len(server.heard) == 2)
        capture.streams = (found,)
        capture.write(b"0: first\n")
        await server.until(lambda: bool(server.pieces))

    await fed(capture, server, writes)
    kinds = [each.WhichOneof("tell") for each in server.heard]
    assert kinds[:4] == ["began", "streams", "streams", "pushed"]


async def test_a_server_that_is_slow_misses_nothing_and_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_text, "_MOST_BYTES", 100_000)
    capture, server = Capture(tmp_path), Server(slow=True)
    written = b""

    async def writes() -> None:
        nonlocal written
        for number in range(300):
            text = (b"%d " % number) * 1000 + b"\n"
            capture.write(text, number)
            written += text
            if number == 200:
                capture.spool.close_chunk()
            await asyncio.sleep(0)
        server.ready.set()
        await server.until(lambda: len(server.text) >= len(written))

    await fed(capture, server, writes)
    assert server.text == written
    at = Position()
    for each in server.pieces:
        assert (each.offset, each.line) == (at.offset, at.line)
        at = at.past(each.text)


async def test_very_short_lines_in_very_great_number(tmp_path: Path) -> None:
    """Each with its moment: what stands around them is more than they are."""
    capture, server = Capture(tmp_path), Server(slow=True)

    async def writes() -> None:
        for number in range(5000):
            capture.write(b"\n", number)
        await asyncio.sleep(0)
        for number in range(3):
            capture.spool.add_gap(GapCause.TRUNCATED, number, number)
        ask = pb.FeedAsk(id=1, kind="stdout", source="batch", offset=10)
        server.ready.set()
        await server.until(lambda: len(server.heard) > 1)
        server.questions.put_nowait(ask.SerializeToString())
        await server.until(lambda: len(server.text) >= 5000 and bool(server.fetched))

    await fed(capture, server, writes)
    assert server.text == b"\n" * 5000
    (fetched,) = server.fetched
    assert fetched.pieces[0].offset == 10
    assert len(fetched.pieces) > 100


async def test_at_the_end_the_true_end_is_told(tmp_path: Path) -> None:
    """Whoever takes `over` for the end must know how far it goes."""
    capture, server = Capture(tmp_path), Server(slow=True)

    async def writes() -> None:
        capture.write(b"a\n" * 100_000)
        capture.over = True
        capture.tell(None)
        server.ready.set()
        await server.until(lambda: len(server.text) == 200_000)

    await fed(capture, server, writes)
    over = [each.streams for each in server.heard if each.streams.over]
    assert over
    assert all(each.streams[0].offset == 200_000 for each in over)


async def test_what_left_the_spool_is_left_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_text, "_MOST_BYTES", 10)
    capture, server = Capture(tmp_path), Server(slow=True)

    async def writes() -> None:
        capture.write(b"stored long ago\n")
        await asyncio.sleep(0)
        capture.spool.close_chunk()
        capture.spool.took(1, StoredChunk(1, 16, 1))
        capture.write(b"still here\n")
        await asyncio.sleep(0)
        server.ready.set()
        await server.until(lambda: b"still here\n" in server.text)

    await fed(capture, server, writes)
    assert server.text == b"still here\n"
    assert server.pieces[0].offset == 16


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.booleans()), min_size=1, max_size=9),
    st.floats(0, 1, exclude_max=True),
)
def test_a_spool_read_forwards_is_what_was_added(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[bytes, bool]], part: float
) -> None:
    whole = b"".join(text for text, _ in texts)
    begin = int(part * len(whole))
    spool = StreamSpool(tmp_path_factory.mktemp("spool"), HEAD)
    with closing(spool), closing(SpoolReader(spool)) as reader:
        for number, (text, ends_chunk) in enumerate(texts):
            spool.add(text, number)
            if ends_chunk:
                spool.close_chunk()
        read = b""
        while begin + len(read) < len(whole):
            at = begin + len(read)
            pieces = reader.pieces(at)
            assert pieces[0].at == Position(at, whole.count(b"\n", 0, at))
            read += b"".join(each.text for each in pieces)
    assert read == whole[begin:]


def test_a_chunk_that_was_begun_is_read_to_its_end(tmp_path: Path) -> None:
    """The store may take it meanwhile."""
    spool = StreamSpool(tmp_path, HEAD)
    spool.add(b"first\n", 1)
    spool._open.make_frame()
    spool.add(b"second\n", 2)
    spool.close_chunk()
    reader = SpoolReader(spool)
    assert reader.pieces(0)[0].text == b"first\n"
    spool.took(1, StoredChunk(1, 13, 2))
    assert reader.pieces(6)[0].text == b"second\n"
    reader.close()
    assert SpoolReader(spool).pieces(6) == []
    spool.close()


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=40), st.data())
def test_the_ring_has_the_newest_in_order(texts: list[bytes], data: st.DataObject) -> None:
    stream, at = FedStream(NAME), Position()
    for number, text in enumerate(texts):
        stream.keep(Piece(at, number, False, text))
        at = at.past(text)
    whole = b"".join(texts)
    assert stream.end == at
    begin = data.draw(st.integers(0, len(whole)))
    read = begin
    while pieces := stream.pieces(read):
        for piece in pieces:
            assert piece.at.offset == read
            assert piece.text == whole[read : read + len(piece.text)]
            read += len(piece.text)
    assert read == len(whole)


def test_only_a_viewer_who_reads_along_is_waited_for() -> None:
    stream = FedStream(NAME, most_ring_bytes=100)
    for number in range(6):
        stream.keep(Piece(Position(number * 10, 0), 0, False, b"x" * 10))
    assert not stream.crowded, "nobody has asked"
    assert stream.pieces(0)
    assert stream.crowded
    stream.moved.clear()
    assert stream.pieces(20)
    assert stream.moved.is_set()
    assert not stream.crowded
    for number in range(6, 20):
        stream.keep(Piece(Position(number * 10, 0), 0, False, b"x" * 10))
    assert not stream.crowded, "it has fallen out: it is fetched for"
    assert stream.pieces(20) == []


def test_a_hole_in_what_comes_begins_the_ring_anew() -> None:
    stream = FedStream(NAME)
    stream.keep(Piece(Position(0, 0), 0, False, b"a\n"))
    stream.keep(Piece(Position(100, 9), 0, False, b"b\n"))
    assert stream.pieces(0) == []
    assert [each.text for each in stream.pieces(100)] == [b"b\n"]
    assert stream.end == Position(102, 10)


def attempt_began(started: float, number: int = 1) -> AttemptName:
    began = datetime.fromtimestamp(started, UTC)
    job = allocation(7, "alice", "research", submitted=began, started=began, attempt=number)
    return AttemptName(job, attempts_of(job)[0])


@pytest.mark.spec("LOG-1", "AUTH-7")
@pytest.mark.parametrize("whose", ["the next attempt's", "another's job", "nobody's"])
async def test_what_comes_under_the_same_number_later_is_not_taken_for_it(
    tmp_path: Path, whose: str
) -> None:
    """Viewers of a job that was running when they came are there still when the number is used
    again: by its next attempt, or, when numbers have come round, by somebody else's job."""
    first, second = Capture(tmp_path / "1"), Capture(tmp_path / "2")
    lives = [life(first, 100.5)]

    async def attempt_of(node: str, job_id: int, began: float) -> AttemptName:
        assert (node, job_id) == ("n1", 7)
        if began < 200:
            return attempt_began(100)
        if whose == "nobody's":
            raise NotFound("no such job")
        name = attempt_began(200, 2)
        return name if "attempt" in whose else replace(
            name, allocation=replace(name.allocation, user="mallory")
        )  # fmt: skip

    nodes = FeedingNodes(LogFeed(lambda: lives))
    signer = GrantSigner(SigningKey.generate(), SystemClock())
    feeds = Feeds(nodes, signer, SystemClock(), attempt_of)
    try:
        with feeds.opened(attempt_began(100), ("n1",), Rounds()) as opened:
            feed = opened["n1"]
            async with asyncio.timeout(60):
                while not first.listeners:
                    await asyncio.sleep(0.01)
                first.write(b"of the first\n")
                while KEY not in feed.streams or not feed.streams[KEY].ring:
                    await asyncio.sleep(0.01)
                second.write(b"of the second\n")
                lives.append(life(second, 200.5))
                first.tell(None)
                while len(nodes.asked) < 2 or len(first.listeners) != 1:
                    await asyncio.sleep(0.01)
                second.write(b"and more\n")
                first.write(b"the rest\n")
                ring = feed.streams[KEY].ring
                while ring[-1].text != b"the rest\n":
                    await asyncio.sleep(0.01)
                assert b"".join(each.text for each in ring) == b"of the first\nthe rest\n"
                assert nodes.asked[1]["before"] == 200.5
    finally:
        await feeds.aclose()
        first.spool.close()
        second.spool.close()


async def test_the_rest_of_one_life_is_sent_before_the_next_is_told_of(tmp_path: Path) -> None:
    """Where Slurm keeps no group of its own, one attempt has several lives on a node."""
    first, second = Capture(tmp_path / "1"), Capture(tmp_path / "2")
    lives, server = [life(first)], Server(slow=True)
    serving = asyncio.create_task(LogFeed(lambda: lives)(server, OPENING))
    try:
        while not first.listeners:
            server.ready.set()
            await asyncio.sleep(0)
        server.ready.clear()
        first.write(b"one\n")
        lives.append(life(second, 1.6))
        second.write(b"two\n")
        first.tell(None)
        await asyncio.sleep(0)
        server.ready.set()
        await server.until(lambda: bool(second.listeners))
        second.write(b"three\n")
        await server.until(lambda: server.text.endswith(b"three\n"))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        first.spool.close()
        second.spool.close()
    told = [
        each.began or each.pushed.pieces[0].text
        for each in server.heard
        if not each.HasField("streams")
    ]
    assert told == [1.5, b"one\n", 1.6, b"three\n"]


async def test_a_node_whose_clock_is_wrong_speaks_of_its_jobs_in_the_servers_time(
    tmp_path: Path,
) -> None:
    capture, server = Capture(tmp_path), Server()
    lives = [life(capture, 301.5), life(Capture(tmp_path / "older"), 1.5)]
    feed = LogFeed(lambda: lives, to_server_time=lambda here_s: here_s - 300, ahead_s=lambda: 300.2)
    serving = asyncio.create_task(feed(server, OPENING))
    try:
        await server.until(lambda: any(each.HasField("streams") for each in server.heard))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        for each in lives:
            each.capture.spool.close()
    assert server.heard[0].began == 1.5
    assert server.heard[1].streams.clock_ahead_s == 300


def test_viewers_are_told_of_a_wrong_clock_once() -> None:
    notices = LogNotices(SystemClock())
    told = asyncio.Event()
    told.set()
    feeds: dict[str, Any] = {
        name: SimpleNamespace(trouble="", reported=told, clock_ahead_s=ahead_s)
        for name, ahead_s in (("n1", 0), ("n2", 302))
    }
    (note,) = notices.opening("", feeds)
    assert note_mark(note, "42") == "--- n2: clock +302 s corrected ---"
    assert notices.changes(feeds) == []
    feeds["n1"].clock_ahead_s = -7
    (note,) = notices.changes(feeds)
    assert (note.kind, note.node, note.words) == (
        NoteKind.CLOCK_CORRECTED, "n1", "clock -7 s corrected",
    )  # fmt: skip


@pytest.mark.spec("LOG-3")
async def test_a_cause_of_a_later_version_is_an_unknown_cause() -> None:
    gaps = [pb.FeedGap(cause="a cause of a later version", offset=3, lost_bytes=9, time_ms=5)]
    stream = pb.FeedStream(kind="stdout", source="batch", offset=3, gaps=gaps)
    feed = NodeFeed(attempt_began(100), "n1", None, None, SystemClock(), None)  # type: ignore[arg-type]
    feed._take(pb.FeedTell(streams=pb.FeedStreams(streams=[stream])))
    (found,) = feed.streams[KEY].gaps
    assert (found.cause, found.lost_bytes, feed.trouble) == (GapCause.UNKNOWN, 9, "")
    mark = gap_mark(records.gap(StreamName("n1", *KEY), found))
    assert mark == "--- n1: 9 B missing (unknown cause) ---"


@pytest.mark.spec("LOG-3")
async def test_viewers_learn_that_a_node_can_not_be_read() -> None:
    """Its connection lives on by pings alone, so nothing else would end the wait."""
    stream = pb.FeedStream(kind="a kind of a later version", source="batch")
    tell = pb.FeedTell(streams=pb.FeedStreams(streams=[stream])).SerializeToString()

    async def speak(conduit: Any, _opening: bytes) -> None:
        await conduit.send(tell)
        await asyncio.Event().wait()

    async def attempt_of(_node: str, _job_id: int, _began: float) -> AttemptName:
        return attempt_began(100)

    signer = GrantSigner(SigningKey.generate(), SystemClock())
    feeds = Feeds(FeedingNodes(speak), signer, SystemClock(), attempt_of)  # type: ignore[arg-type]
    try:
        with feeds.opened(attempt_began(100), ("n1",), Rounds()) as opened:
            feed = opened["n1"]
            async with asyncio.timeout(60):
                while not feed.trouble:
                    await asyncio.sleep(0.01)
        assert feed.trouble == "it names no stream"
    finally:
        await feeds.aclose()


@pytest.mark.parametrize(
    "tell",
    [
        pb.FeedTell(pushed=pb.FeedText(
            kind="stdout", source="batch", pieces=[pb.FeedPiece(time_ms=2**60, text=b"x")])),
        pb.FeedTell(pushed=pb.FeedText(
            kind="stdout", source="batch", pieces=[pb.FeedPiece(time_ms=-1, text=b"x")])),
        pb.FeedTell(streams=pb.FeedStreams(streams=[pb.FeedStream(
            kind="stdout", source="batch", gaps=[pb.FeedGap(cause="quota", time_ms=2**60)])])),
    ],
    ids=["late", "early", "gap"],
)  # fmt: skip
def test_what_no_calendar_has_a_date_for_is_not_taken_from_a_node(tell: pb.FeedTell) -> None:
    node = NodeFeed(*[None] * 6)  # type: ignore[arg-type]
    with pytest.raises(NoAnswer):
        node._take(tell)
