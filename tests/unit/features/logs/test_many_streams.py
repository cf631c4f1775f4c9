"""Followers of many streams: a round visits what changed, and shows what a visit of all would."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.domain.attempts import attempts_of
from lattice.domain.logs import LogKind, LogSource, Piece, Position, StreamName
from lattice.features.logs.model import LogBlock, LogQuery, LogRecord, NoteKind
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.log_query import LogQueryRun
from lattice.features.logs.service.query_streams import LogSources
from lattice.features.logs.service.records import LineFilter
from lattice.features.logs.service.wakeups import Rounds
from lattice.wire.v1 import logs_pb2 as pb
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock


@dataclass
class Writer:
    """One stream of a node, as its agent sends it."""

    feed: NodeFeed
    source: str = "batch"
    text: bytes = b""
    gaps: list[pb.FeedGap] = field(default_factory=list)
    is_over: bool = False

    @property
    def at(self) -> dict[str, int]:
        return {"offset": len(self.text), "line": self.text.count(b"\n")}

    def write(self, text: bytes, time_ms: int) -> None:
        piece = pb.FeedPiece(**self.at, time_ms=time_ms, text=text)
        self.text += text
        pushed = pb.FeedText(kind="stdout", source=self.source, pieces=[piece])
        self.feed._take(pb.FeedTell(pushed=pushed))

    def lose(self, lost_bytes: int, time_ms: int) -> None:
        gap = pb.FeedGap(**self.at, cause="truncated", lost_bytes=lost_bytes, time_ms=time_ms)
        self.gaps.append(gap)
        self.report()

    def report(self) -> None:
        stream = pb.FeedStream(kind="stdout", source=self.source, **self.at, gaps=self.gaps)
        report = pb.FeedStreams(streams=[stream], over=self.is_over)
        self.feed._take(pb.FeedTell(streams=report))


class Job:
    """A running job, with feeds that a test fills."""

    def __init__(self, nodes: int) -> None:
        self.clock = ManualClock()
        scheduler = InMemoryScheduler(self.clock)
        now = self.clock.now()
        job = allocation(7, "alice", "research", submitted=now, started=now, nodes=f"n[1-{nodes}]")
        scheduler.allocations.append(job)
        scheduler.read()
        self.name = AttemptName(job, attempts_of(job)[0])
        archive = Archive(InMemoryObjectStore(self.clock))
        self.sources = LogSources(scheduler, archive, None, self.clock)  # type: ignore[arg-type]
        unused: Any = None
        self.feeds = {
            node: NodeFeed(self.name, node, unused, unused, self.clock, unused, None, nodes)
            for node in (f"n{number}" for number in range(1, nodes + 1))
        }
        self.writers = [Writer(feed) for feed in self.feeds.values()]


class Viewer:
    """A follower, round by round."""

    def __init__(self, job: Job, **query: Any) -> None:
        asked = LogQuery(follow=True, **query)
        self.run = LogQueryRun(job.sources, job.name, asked, LineFilter(asked), "alice")
        self.run.found.feeds = job.feeds
        for feed in job.feeds.values():
            feed.join(self.run.found.rounds)
        self.records: list[LogRecord] = []

    async def round(self) -> list[LogRecord]:
        found = [record async for group in self.run._news() for record, _ in group]
        found += self.run._beginnings()
        self.records += found
        return found

    async def whole_round(self) -> list[LogRecord]:
        """A round that visits every stream and every node."""
        for node, feed in self.run.found.feeds.items():
            self.run.found.rounds.node_changed(node)
            for stream in feed.streams.values():
                self.run.found.rounds.stream_changed(stream)
        self.run.view.mark_all()
        self.run._visited.update(dict.fromkeys(self.run.view.streams.values()))
        return await self.round()

    @property
    def is_complete(self) -> bool:
        """As a look at every stream finds it."""
        streams = self.run.view.streams.values()
        return bool(streams) and all(each.is_over and each.is_read for each in streams)

    def text_of(self, node: str) -> str:
        lines = (each for each in self.records if isinstance(each, LogBlock))
        return "".join(each.text for each in lines if each.node == node and not each.unfinished)


TEXTS = st.sampled_from([b"a\n", b"b", b"c\nd\n", b"\n", b"e\rf", b"g\nh"])
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), TEXTS, st.integers(0, 4)),
        st.tuples(st.just("lose"), st.integers(0, 3), st.integers(1, 9), st.integers(0, 4)),
        st.tuples(st.just("report"), st.integers(0, 3)),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("away"), st.integers(0, 3)),
        st.tuples(st.just("back"), st.integers(0, 3)),
        st.tuples(st.just("round")),
    ),
    max_size=60,
)


def act(job: Job, kind: str, number: int, *values: Any) -> None:
    writer = job.writers[number]
    if kind == "write" and not writer.is_over:
        text, time_ms = values
        # Times may be equal, and a node may be late.
        writer.write(text, 1_700_000_000_000 + time_ms)
    elif kind == "lose" and not writer.is_over:
        lost_bytes, time_ms = values
        writer.lose(lost_bytes, 1_700_000_000_000 + time_ms)
    elif kind == "report":
        writer.report()
    elif kind == "end":
        writer.is_over = True
        writer.report()
    elif kind == "away":
        writer.feed.lost("it is away")
    elif kind == "back":
        writer.feed.answered()


@pytest.mark.spec("LOG-3", "LOG-7")
@given(ACTS)
@example([("write", 0, b"a\n", 1), ("round",), ("lose", 0, 5, 2), ("round",)])
@example([("write", 0, b"a\n", 1), ("round",), ("lose", 0, 5, 2), ("write", 0, b"b\n", 0)])
@example([("report", 1), ("round",), ("away", 1), ("round",), ("back", 1), ("round",)])
async def test_what_is_shown_is_what_a_visit_of_every_stream_shows(
    acts: list[tuple[Any, ...]],
) -> None:
    job = Job(4)
    some, every = Viewer(job), Viewer(job)
    ends = [("end", number) for number in range(4)]
    for each in (*acts, ("round",), *ends, ("round",)):
        if each[0] != "round":
            act(job, *each)
            continue
        job.clock.advance(1)
        assert await some.round() == await every.whole_round()
        assert some.run.view.is_complete == some.is_complete
        assert some.run.view.positions() == every.run.view.positions()
    assert some.run.view.is_complete
    for writer in job.writers:
        assert some.text_of(writer.feed.node).encode() == writer.text


@pytest.mark.spec("LOG-7")
async def test_last_lines_without_a_line_feed_come_in_the_order_of_the_streams() -> None:
    job = Job(3)
    viewer = Viewer(job)
    for writer in job.writers:
        writer.write(b"no end", 5)
    await viewer.round()
    for writer in reversed(job.writers):
        writer.is_over = True
        writer.report()
    shown = [each for each in await viewer.round() if isinstance(each, LogBlock)]
    assert [(each.node, each.text) for each in shown] == [
        (node, "no end") for node in ("n1", "n2", "n3")
    ]


@pytest.mark.spec("LOG-7")
async def test_a_round_visits_the_streams_that_changed() -> None:
    job = Job(1000)
    viewer = Viewer(job)
    for number, writer in enumerate(job.writers):
        writer.write(b"begun\n", number)
        writer.report()
    assert len(await viewer.round()) == 1000
    for writer in job.writers:
        writer.report()
    assert viewer.run.found.rounds.take_streams() == (), "a report without news changes nothing"
    job.writers[499].write(b"alone\n", 2000)
    viewer.run.found.take_streams(viewer.run.found.rounds.take_streams())
    visited = viewer.run.view.take_changed()
    assert [each.name.node for each in visited] == ["n500"]
    viewer.run.view.mark(visited[0])
    (record,) = await viewer.round()
    assert isinstance(record, LogBlock)
    assert (record.node, record.text) == ("n500", "alone\n")
    assert viewer.run.view.take_changed() == []


@pytest.mark.spec("LOG-3")
async def test_text_that_could_not_be_read_is_tried_again() -> None:
    job = Job(2)
    writer, other = job.writers
    viewer = Viewer(job)
    writer.text = b"on the node alone\n"
    writer.report()
    assert await viewer.round() == []
    other.write(b"meanwhile\n", 1)
    assert [each.text for each in await viewer.round()] == ["meanwhile\n"]  # type: ignore[union-attr]
    asked = []

    async def fetch(key: Any, offset: int) -> list[Any]:
        asked.append((key, offset))
        stream = FedStream(StreamName("n1", *key))
        stream.keep(live_piece(writer.text))
        return stream.pieces(offset)

    writer.feed.fetch = fetch  # type: ignore[method-assign]
    assert [each.text for each in await viewer.round()] == ["on the node alone\n"]  # type: ignore[union-attr]
    assert asked == [((LogKind.STDOUT, LogSource("batch")), 0)]
    assert await viewer.round() == []
    assert len(asked) == 1


def live_piece(text: bytes) -> Piece:
    return Piece(Position(), 2, False, text)


@pytest.mark.spec("LOG-7")
async def test_streams_that_are_fetched_wait_at_the_same_time() -> None:
    """One node that takes long delays the round, not each of the others after it."""
    job = Job(12)
    viewer, waiting, go = Viewer(job), [], asyncio.Event()
    for writer in job.writers:
        writer.text = b"old\n"
        writer.report()

        async def fetch(key: Any, offset: int) -> list[Any]:
            waiting.append(key)
            await go.wait()
            return [live_piece(b"old\n")]

        writer.feed.fetch = fetch  # type: ignore[method-assign]
    reading = asyncio.create_task(viewer.round())
    while len(waiting) < 12:
        await asyncio.sleep(0)
    go.set()
    found = [(each.node, each.text) for each in await reading]  # type: ignore[union-attr]
    # Of the same time: in the order of their names.
    assert found == [(name, "old\n") for name in sorted(job.feeds)]


@pytest.mark.spec("LOG-3", "LOG-7")
async def test_a_slow_viewer_has_everything_later_and_holds_nothing_meanwhile() -> None:
    job = Job(50)
    slow, fast = Viewer(job), Viewer(job)
    for number in range(40):
        for writer in job.writers:
            writer.write(f"{number} of {writer.feed.node}\n".encode(), number)
        await fast.round()
    assert len(slow.run.found.rounds._streams) == 50, "each once, however often it changed"
    assert not slow.run.view.streams
    await slow.round()
    for writer in job.writers:
        assert slow.text_of(writer.feed.node).encode() == writer.text
        assert fast.text_of(writer.feed.node).encode() == writer.text
    times = [each.time for each in slow.records if isinstance(each, LogBlock)]
    assert times == sorted(times)


@pytest.mark.spec("LOG-3")
async def test_a_node_is_reported_when_it_changes_and_once() -> None:
    job = Job(100)
    viewer = Viewer(job)
    for writer in job.writers:
        writer.report()
    await viewer.round()
    job.feeds["n7"].lost("it is away")
    (note,) = await viewer.round()
    assert (note.kind, note.node) == (NoteKind.DISCONNECTED, "n7")  # type: ignore[union-attr]
    assert await viewer.round() == []
    job.feeds["n7"].answered()
    (note,) = await viewer.round()
    assert (note.kind, note.node) == (NoteKind.RECONNECTED, "n7")  # type: ignore[union-attr]


async def test_changes_while_nobody_waits_begin_the_next_round() -> None:
    rounds, stream = Rounds(), FedStream(StreamName("n1", LogKind.STDOUT, LogSource("batch")))
    rounds.stream_changed(stream)
    await rounds.change(0)
    await rounds.next(many=True, gather=False)
    assert rounds.take_streams() == (stream,)
    rounds.stop()


@pytest.mark.parametrize(
    ("nodes", "streams", "share"), [(1, 1, 2048), (1000, 1, 262), (1000, 8, 64)]
)
def test_rings_of_a_large_job_share_their_memory(nodes: int, streams: int, share: int) -> None:
    writer = Writer(NodeFeed(*[None] * 7, nodes))  # type: ignore[arg-type]
    for number in range(streams):
        writer.source, writer.text = f"0.{number}", b""
        for _ in range(40):
            writer.write(b"x" * 65_535 + b"\n", 1)
    last = list(writer.feed.streams.values())[-1]
    assert last.most_ring_bytes // 1024 == share
    assert last.ring_bytes <= max(last.most_ring_bytes, 65_536)
