"""Followers of one query share a run: each has every line once, whenever it joins or lags."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.base.errors import DataUnavailable
from lattice.domain.allocation import State
from lattice.domain.logchunk import compress
from lattice.domain.logs import LogKind, LogSource, Position, StreamName
from lattice.features.logs.block_reader import BlockReader
from lattice.features.logs.blocks import BlockWriter, LinesFrame
from lattice.features.logs.model import LogQuery
from lattice.features.logs.service import log_query, shared_follow, wakeups
from lattice.features.logs.service.frames import FrameForm
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.features.logs.service.log_query import LogQueryRun
from lattice.features.logs.service.log_service import LogService
from lattice.features.logs.service.query_streams import LogSources
from lattice.features.logs.service.records import BLOCKS, PACKED_BLOCKS, LineFilter, RecordForm
from lattice.features.logs.service.wakeups import Rounds
from lattice.wire.v1 import logs_pb2 as pb
from tests.unit.features.logs.test_fed_frames import lines_of, ring_of, view_of
from tests.unit.features.logs.test_many_streams import Job, Writer

NODES = 3
TIME_MS = 1_700_000_000_000


class OpenFeeds:
    """The feeds of a job, which a test fills."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.listeners: list[Rounds] = []

    @contextmanager
    def opened(
        self, _name: Any, nodes: Sequence[str], listener: Rounds
    ) -> Iterator[dict[str, NodeFeed]]:
        found = {node: self.job.feeds[node] for node in nodes}
        self.listeners.append(listener)
        for feed in found.values():
            feed.join(listener)
        try:
            yield found
        finally:
            self.listeners.remove(listener)
            for feed in found.values():
                feed.leave(listener)


class Site:
    """A running job, and the service that people ask."""

    def __init__(self, nodes: int = NODES) -> None:
        self.job = Job(nodes)
        known: Any = OpenFeeds(self.job)
        self.feeds: OpenFeeds = known
        before = self.job.sources
        self.sources = LogSources(before.scheduler, before.archive, known, self.job.clock)
        unused: Any = None
        self.service = LogService(before.scheduler, unused, before.archive, known, self.job.clock)
        for writer in self.job.writers:
            writer.report()

    def end(self) -> None:
        """The job ends, and all its output has arrived."""
        scheduler: Any = self.sources.scheduler
        scheduler.allocations[0] = replace(
            scheduler.allocations[0],
            ended=self.job.clock.now(),
            state=State.COMPLETED,
        )
        scheduler.read()
        for writer in self.job.writers:
            writer.is_over = True
            writer.report()


def write_frame(writer: Writer, text: bytes) -> None:
    """As an agent sends a large read."""
    stored = compress(text)
    frame = pb.FeedFrame(
        **writer.at,
        time_ms=TIME_MS,
        plain_bytes=len(text),
        lines=text.count(b"\n"),
        stored=stored,
    )
    writer.text += text
    pushed = pb.FeedText(kind="stdout", source=writer.source, frames=[frame])
    writer.feed._take(pb.FeedTell(pushed=pushed))


class Reader:
    """A follower at the other end of its connection."""

    def __init__(
        self,
        site: Site,
        form: RecordForm = PACKED_BLOCKS,
        *,
        positions: Mapping[StreamName, Position] | None = None,
        **query: Any,
    ) -> None:
        asked = LogQuery(follow=True, **query)
        run = LogQueryRun(
            site.sources, site.job.name, asked, LineFilter(asked), "alice", form, positions
        )  # fmt: skip
        self.lines: list[LinesFrame] = []
        self.others: list[dict[str, Any]] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.groups = 0
        self.task = asyncio.create_task(self._read(site.service._records(run, follow=True)))

    async def _read(self, records: AsyncIterator[tuple[Any, str]]) -> None:
        writer, reader = BlockWriter(msgspec.json.encode), BlockReader(is_decoding=False)
        try:
            async for record, cursor in records:
                self.groups += isinstance(record, shared_follow.RecordGroup)
                for event in reader.feed(writer.record(record, cursor)):
                    if isinstance(event.record, LinesFrame):
                        self.lines.append(event.record)
                    elif event.data:
                        self.others.append(json.loads(event.data))
                await self.goes_on.wait()
        finally:
            await records.aclose()  # type: ignore[attr-defined]

    def text_of(self, node: str) -> bytes:
        return b"".join(e.text for e in self.lines if e.node == node and not e.unfinished)

    @property
    def gaps(self) -> dict[tuple[str, int], int]:
        """By node and offset, the lost bytes. A gap that grew is reported again, and only then."""
        found: dict[tuple[str, int], int] = {}
        for each in self.others:
            if each["type"] == "gap":
                key = (each["node"], each["offset"])
                assert each["lost_bytes"] > found.get(key, -1)
                found[key] = each["lost_bytes"]
        return found

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "_ROUND_S", 0.05)
    monkeypatch.setattr(wakeups, "_SETTLE_S", 0.0)
    monkeypatch.setattr(log_query, "_FLOOD_BYTES", 100)
    monkeypatch.setattr(log_query, "_PLENTY_BYTES", 100)
    monkeypatch.setattr(shared_follow, "_AHEAD_BYTES", 300)
    monkeypatch.setattr(shared_follow, "_BEHIND_BYTES", 900)
    monkeypatch.setattr(shared_follow, "_JOIN_S", 0.02)


@asynccontextmanager
async def opened(nodes: int = NODES) -> AsyncIterator[Site]:
    site = Site(nodes)
    yield site
    await site.service.aclose()
    assert not site.feeds.listeners, "what was opened is closed"
    assert not site.service._follows._follows


async def settle(rounds: int = 30) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


TEXTS = st.sampled_from([b"a\n", b"b", b"c\nd\n", b"\n", b"e\rf", b"g\nh", b"long " * 40 + b"\n"])
NUMBERS = st.integers(0, NODES - 1)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NUMBERS, TEXTS),
        st.tuples(st.just("frame"), NUMBERS, TEXTS),
        st.tuples(st.just("lose"), NUMBERS, st.integers(1, 9)),
        st.tuples(st.just("end"), NUMBERS),
        st.tuples(st.just("join"), st.just(0)),
        st.tuples(st.just("pause"), st.integers(0, 5)),
        st.tuples(st.just("resume"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("settle"), st.integers(1, 30)),
    ),
    max_size=60,
)
FLOOD = b"long " * 40 + b"\n" + b"begun"
JOINED = [("join", 0), ("settle", 30)]
FALLS_BEHIND = [*JOINED, *JOINED, ("pause", 1)] + 9 * [
    ("write", 0, b"x" * 200 + b"\n"),
    ("settle", 9),
]

UNTAKEN = [*JOINED, ("pause", 0), ("write", 0, b"a\n"), ("settle", 9), ("write", 0, b"b\n")]


def write(writer: Writer, kind: str, *values: Any) -> None:
    if kind == "end" or writer.is_over:
        writer.is_over = True
        writer.report()
    elif kind == "write":
        writer.write(values[0], TIME_MS)
    elif kind == "frame":
        write_frame(writer, values[0])
    else:
        writer.lose(values[0], TIME_MS)


async def play(site: Site, acts: Sequence[tuple[Any, ...]], form: RecordForm) -> list[Reader]:
    """Those who read to the end."""
    readers: list[Reader] = []
    for kind, number, *values in acts:
        if kind in {"write", "frame", "lose", "end"}:
            write(site.job.writers[number % len(site.job.writers)], kind, *values)
        elif kind == "join":
            readers.append(Reader(site, form))
        elif kind == "settle":
            await settle(number)
        elif number < len(readers):
            if kind == "leave":
                await readers.pop(number).leave()
            elif kind == "pause":
                readers[number].goes_on.clear()
            else:
                readers[number].goes_on.set()
    return readers


@pytest.mark.spec("LOG-3", "LOG-7")
@pytest.mark.parametrize(
    ("form", "nodes"), [(BLOCKS, NODES), (PACKED_BLOCKS, 1)], ids=["blocks", "packed"]
)
@given(acts=ACTS)
@example(acts=[*JOINED, ("write", 0, b"a"), ("settle", 9), ("join", 0), ("write", 0, b"b\n")])
@example(acts=[*JOINED, ("frame", 0, b"a\nb"), ("settle", 9), *JOINED, ("frame", 0, b"c\nd")])
@example(acts=[*JOINED, ("frame", 0, FLOOD), ("settle", 9), *JOINED, ("frame", 0, FLOOD)])
@example(acts=[*JOINED, ("write", 0, b"a"), ("lose", 0, 5), ("settle", 9), *JOINED])
@example(
    acts=[("write", 1, b"b"), ("join", 0), ("settle", 4), ("write", 0, b"g\nh"), ("settle", 1)]
)
@example(acts=FALLS_BEHIND)
@example(acts=[*FALLS_BEHIND, ("resume", 1), ("settle", 30), ("write", 0, b"more\n")])
@example(acts=[*JOINED, *JOINED, ("leave", 0), ("write", 1, b"a\n"), ("settle", 9)])
@example(acts=[*UNTAKEN, *JOINED, *JOINED, ("leave", 1), ("write", 0, b"b\n"), ("settle", 9)])
@example(acts=[*UNTAKEN, ("lose", 0, 5), ("join", 0), ("settle", 9), ("resume", 0)])
@example(acts=[*UNTAKEN, ("write", 0, b"b"), ("end", 0), ("join", 0), ("settle", 9)])
async def test_each_follower_has_every_line_and_every_gap_once(
    acts: list[tuple[Any, ...]], form: RecordForm, nodes: int
) -> None:
    async with opened(nodes) as site:
        readers = await play(site, acts, form)
        for each in readers:
            each.goes_on.set()
        site.end()
        async with asyncio.timeout(20):
            await asyncio.gather(*(each.task for each in readers))
        for each in readers:
            for writer in site.job.writers:
                assert each.text_of(writer.feed.node) == writer.text
            assert each.gaps == {
                (writer.feed.node, gap.offset): max(
                    other.lost_bytes for other in writer.gaps if other.offset == gap.offset
                )
                for writer in site.job.writers
                for gap in writer.gaps
            }


@pytest.mark.spec("LOG-7")
async def test_a_line_is_found_and_encoded_once_for_all_followers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(1) as site:
        readers = [Reader(site) for _ in range(20)]
        await settle(100)
        assert len(site.feeds.listeners) == 1, "one run reads for all"
        made: list[Any] = []
        frames = LinesFrame.of.__func__  # type: ignore[attr-defined]
        monkeypatch.setattr(
            LinesFrame, "of", classmethod(lambda *given: made.append(given) or frames(*given))
        )
        site.job.writers[0].write(b"one\n", TIME_MS)
        await settle(100)
        on_server = [each for each in made if each[0] is LinesFrame]
        assert len(on_server) == 1 + len(readers), "once here, and once by each client"
        assert {each.text_of("n1") for each in readers} == {b"one\n"}
        assert all(each.groups == 1 for each in readers)
        for each in readers:
            await each.leave()


@pytest.mark.spec("LOG-7")
async def test_queries_that_differ_share_no_run() -> None:
    async with opened(2) as site:
        differ: list[dict[str, Any]] = [{}, {"nodes": ("n1",)}, {"grep": "a"}, {"exclude": "a"}]
        readers = [Reader(site, **query) for query in differ for _ in range(2)]
        readers.append(Reader(site, BLOCKS))
        await settle(200)
        assert len(site.feeds.listeners) == len(differ) + 1
        for each in readers:
            await each.leave()


@pytest.mark.spec("LOG-3")
async def test_what_a_follower_leaves_out_by_time_others_get() -> None:
    """A node that was away sends text that it read before."""
    async with opened(1) as site:
        (writer,) = site.job.writers
        writer.write(b"old\n", TIME_MS)
        since = datetime.fromtimestamp(TIME_MS / 1000 + 60, UTC)
        recent, every = Reader(site, since=since), Reader(site)
        await settle(100)
        writer.write(b"late\n", TIME_MS + 1)
        writer.write(b"new\n", TIME_MS + 90_000)
        await settle(100)
        assert recent.text_of("n1") == b"new\n"
        assert every.text_of("n1") == writer.text
        for each in (recent, every):
            await each.leave()


@pytest.mark.spec("LOG-3")
async def test_a_cursor_for_a_stream_that_is_still_to_come_is_one_followers_own() -> None:
    async with opened(2) as site:
        first, second = site.job.writers
        first.write(b"a\n", TIME_MS)
        site.job.feeds["n2"].streams.clear()
        ahead = {StreamName("n2", LogKind.STDOUT, LogSource("batch")): Position(4, 1)}
        resumed, fresh = Reader(site, positions=ahead), Reader(site)
        await settle(100)
        second.write(b"had\nnew\n", TIME_MS)
        await settle(100)
        assert resumed.text_of("n2") == b"new\n"
        assert fresh.text_of("n2") == b"had\nnew\n"
        for each in (resumed, fresh):
            await each.leave()


@pytest.mark.spec("LOG-3")
async def test_a_line_is_not_left_to_a_view_without_its_beginning() -> None:
    whole = view_of(ring_of([(b"one, two", False)]), FrameForm.READS)
    torn = view_of(ring_of([(b"one, two", False)]), FrameForm.READS)
    torn._begin_at(Position(5, 0))
    for each in (whole, torn):
        await lines_of(each, 8)
    assert torn.can_leave_to(whole)
    assert not whole.can_leave_to(torn)


@pytest.mark.spec("LOG-7")
async def test_the_beginning_of_a_follower_does_not_matter() -> None:
    async with opened(1) as site:
        (writer,) = site.job.writers
        for number in range(20):
            writer.write(b"%d\n" % number, TIME_MS)
        readers = [Reader(site), Reader(site, tail=2), Reader(site, tail=0)]
        await settle(200)
        assert len(site.feeds.listeners) == 1
        writer.write(b"more\n", TIME_MS)
        await settle(50)
        assert readers[0].text_of("n1") == writer.text
        assert readers[1].text_of("n1") == b"18\n19\nmore\n"
        assert readers[2].text_of("n1") == b"more\n"
        for each in readers:
            await each.leave()


@pytest.mark.spec("LOG-3")
async def test_the_run_goes_on_when_its_first_follower_leaves() -> None:
    async with opened(1) as site:
        first, second = Reader(site), Reader(site)
        await settle(100)
        await first.leave()
        site.job.writers[0].write(b"more\n", TIME_MS)
        await settle()
        assert second.text_of("n1") == b"more\n"
        assert len(site.feeds.listeners) == 1
        await second.leave()
        await settle()
        assert not site.feeds.listeners


@pytest.mark.spec("LOG-3")
async def test_the_run_goes_on_for_who_joins_as_its_last_follower_leaves() -> None:
    async with opened(1) as site:
        first = Reader(site)
        await settle(100)
        (shared,) = site.service._follows._follows.values()
        (left,) = shared._followers
        left.leave()
        joined = shared.add()
        await settle()
        assert not shared.is_over
        joined.leave()
        await settle()
        assert shared.is_over
        await first.leave()


@pytest.mark.spec("LOG-3")
async def test_who_does_not_read_delays_nobody() -> None:
    async with opened(1) as site:
        (writer,) = site.job.writers
        slow, fast = Reader(site), Reader(site)
        await settle(100)
        slow.goes_on.clear()
        for number in range(50):
            writer.write(b"%d %s\n" % (number, b"x" * 100), TIME_MS)
            await settle()
        assert fast.text_of("n1") == writer.text
        (follow,) = site.service._follows._follows.values()
        assert len(follow._followers) == 1, "the slow one has left"
        assert len(slow.text_of("n1")) < len(writer.text)
        # A third one joins the fast one.
        third = Reader(site)
        await settle(100)
        assert third.text_of("n1") == writer.text
        slow.goes_on.set()
        await settle(200)
        assert slow.text_of("n1") == writer.text
        for each in (slow, fast, third):
            await each.leave()


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("end", range(1, 13))
async def test_a_view_ends_where_the_other_is_even_within_a_frame(end: int) -> None:
    text = b"one\ntwo\nthree\n"
    view = view_of(ring_of([(text, True)]), FrameForm.PACKED)
    other = view_of(ring_of([(text[:end], False)]), FrameForm.READS)
    await lines_of(other, end)
    assert view.can_leave_to(other)
    assert view.leave_to(other)
    assert [line for *_, line in await lines_of(view, len(text))] == text[:end].splitlines(True)[
        : text[:end].count(b"\n")
    ]
    assert view.lines.expected == end


@pytest.mark.spec("LOG-3")
async def test_an_error_reaches_every_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(1) as site:
        readers = [Reader(site), Reader(site)]
        await settle(100)

        async def refuse(_run: LogQueryRun) -> AsyncIterator[Any]:
            raise DataUnavailable("it is gone")
            yield

        monkeypatch.setattr(LogQueryRun, "_news", refuse)
        site.job.writers[0].write(b"more\n", TIME_MS)
        found = await asyncio.gather(*(each.task for each in readers), return_exceptions=True)
        assert [str(each) for each in found] == ["it is gone"] * 2


@pytest.mark.spec("LOG-3")
async def test_a_server_that_stops_does_not_end_a_stream_as_if_it_were_complete() -> None:
    async with opened(1) as site:
        readers = [Reader(site), Reader(site)]
        await settle(100)
        await site.service.aclose()
        found = await asyncio.gather(*(each.task for each in readers), return_exceptions=True)
        assert [str(each) for each in found] == ["This server is stopping."] * 2
