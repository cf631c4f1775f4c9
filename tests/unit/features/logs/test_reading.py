"""Finished jobs read from the store: pages, ranges, filters, and what they cost."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputAccess
from lattice.base.errors import NotFound, UsageError
from lattice.domain.allocation import State
from lattice.domain.logchunk import (
    ChunkIndex,
    Frame,
    compress,
    gap_records,
    index_frame,
    pack_marks,
)
from lattice.domain.logs import Gap, GapCause, LogKind, LogSource, Piece, Position, StreamName
from lattice.domain.objects import ObjectStore
from lattice.domain.stream import NodeStreams
from lattice.features.logs.model import LogBlock, LogGap, LogPage, LogQuery
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.live_feeds import Feeds, NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.log_service import LogService
from lattice.features.logs.service.records import gap
from lattice.features.logs.service.retention import Removals
from lattice.features.logs.service.seal import Seals
from lattice.features.logs.service.view import StreamView
from lattice.features.logs.stream_dedup import LogDeduplicator
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")
FRAME_LINES = 10


class NoNodes(NodeStreams):
    """A finished job must not need them."""

    def open(self, question: Any) -> Any:
        raise AssertionError(f"{question.node} was asked")

    def linked_to(self, node: str) -> str:
        raise AssertionError(f"{node} was asked for")


class Site:
    def __init__(self, signer: GrantSigner | None = None) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.objects = InMemoryObjectStore(self.clock)
        self.began = self.clock.now().replace(microsecond=0) - timedelta(hours=1)
        job = allocation(
            7,
            "alice",
            "research",
            submitted=self.began,
            started=self.began,
            ended=self.began + timedelta(minutes=30),
            state=State.COMPLETED,
            nodes="n[1-2]",
        )
        self.scheduler.allocations.append(job)
        self.scheduler.read()
        feeds = Feeds(NoNodes(), None, self.clock, AttemptFinder(self.scheduler, self.clock).of)  # type: ignore[arg-type]
        self.state = InMemoryStateStore(self.clock)
        sharing = sharing_parts(self.state)
        stored = self.stored()
        self.reading = LogService(
            self.scheduler,
            OutputAccess(
                AllocationFinder(self.scheduler, self.clock, sharing.shares),
                sharing.notes,
                self.clock,
            ),
            Archive(stored, Seals(stored, signer, signer.public_keys) if signer else None),
            feeds,
            self.clock,
            removals=Removals(stored),
        )

    def stored(self) -> ObjectStore:
        """What is read."""
        return self.objects

    def ms(self, seconds: float) -> int:
        return int((self.began.timestamp() + seconds) * 1000)

    async def put(
        self,
        node: str,
        lines: Sequence[tuple[float, bytes]],
        *,
        kind: LogKind = LogKind.STDOUT,
        source: str = "batch",
        chunk_lines: int = 30,
        gaps: tuple[Gap, ...] = (),
        labelled: bool = False,
        late: bool = False,
    ) -> None:
        """Lines with their second, in frames of ten and chunks of thirty."""
        at = Position()
        chunks = [lines[n : n + chunk_lines] for n in range(0, len(lines), chunk_lines)] or [()]
        for number, part in enumerate(chunks, 1):
            frames, stored, whole = [], b"", b""
            for begin in range(0, len(part), FRAME_LINES):
                texts = part[begin : begin + FRAME_LINES]
                marks, text = [], b""
                for second, line in texts:
                    text += line
                    marks.append((len(text), self.ms(second)))
                packed = compress(text)
                count = text.count(b"\n")
                frames.append(Frame(len(packed), len(text), count, pack_marks(marks), late))
                stored += packed
                whole += text
            index = ChunkIndex(
                node=node,
                job_id=7,
                started=self.began.timestamp(),
                kind=kind,
                source=source,
                labelled=labelled,
                offset=at.offset,
                line=at.line,
                frames=tuple(frames),
                gap_records=gap_records(gaps if number == 1 else ()),
                last=number == len(chunks),
                sha256=hashlib.sha256(stored).hexdigest(),
            )
            stamp = int(self.began.timestamp())
            key = (
                f"physics/research/7/logs/{stamp}-1/{kind.value}/{node}/chunk_{number:06d}.log.zst"
            )
            await self.stored().put(key, stored + index_frame(index))
            at = at.past(whole)

    async def page(self, **query: Any) -> LogPage:
        return await self.reading.page(ALICE, "7", LogQuery(**query))

    async def texts(self, **query: Any) -> list[str]:
        return texts_of(await self.page(**query))


def texts_of(page: LogPage) -> list[str]:
    blocks = [each for each in page.records if isinstance(each, LogBlock)]
    return [line for each in blocks for line in each.text.splitlines()]


def numbered(count: int, name: str = "line", *, step_s: float = 1.0) -> list[tuple[float, bytes]]:
    return [(number * step_s, f"{name} {number}\n".encode()) for number in range(count)]


def noise(number: int) -> bytes:
    """Text that does not compress much, so that sizes mean something."""
    return hashlib.sha256(b"%d" % number).hexdigest().encode() * 3


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("LOG-5", "LOG-6")
async def test_a_finished_jobs_logs_come_from_the_store_alone(site: Site) -> None:
    await site.put("n1", numbered(100))
    page = await site.page()
    assert texts_of(page) == [f"line {number}" for number in range(100)]
    assert (page.finished, page.cursor, page.attempt) == (True, "", 1)
    blocks = [each for each in page.records if isinstance(each, LogBlock)]
    assert [each.seq for each in blocks] == list(range(100))


@pytest.mark.spec("LOG-6")
async def test_pages_join_without_a_seam(site: Site) -> None:
    await site.put("n1", numbered(95))
    await site.put("n2", numbered(70, "other", step_s=1.3))
    whole = await site.texts(limit=1000)
    found: list[str] = []
    cursor = ""
    while True:
        page = await site.page(limit=17, cursor=cursor)
        found += texts_of(page)
        cursor = page.cursor
        if not cursor:
            break
    assert found == whole
    assert len(found) == 165


@pytest.mark.spec("LOG-7")
async def test_nodes_are_merged_in_the_order_of_time(site: Site) -> None:
    await site.put("n1", numbered(50, "a", step_s=2.0))
    await site.put("n2", numbered(50, "b", step_s=3.0))
    page = await site.page()
    times = [each.time for each in page.records if isinstance(each, LogBlock)]
    assert times == sorted(times)
    for node in ("n1", "n2"):
        seqs = [e.seq for e in page.records if isinstance(e, LogBlock) and e.node == node]
        assert seqs == list(range(50))


@pytest.mark.spec("LOG-6")
async def test_a_range_of_time_reads_only_what_it_needs(site: Site) -> None:
    await site.put("n1", [(n, noise(n) + b" %d\n" % n) for n in range(3000)], chunk_lines=300)
    since = site.began + timedelta(seconds=1500)
    until = site.began + timedelta(seconds=1530)
    await site.page(since=since, until=until)  # the indexes are known from here on
    before = site.objects.read_bytes
    texts = await site.texts(since=since, until=until)
    assert [int(each.rsplit(" ", 1)[1]) for each in texts] == list(range(1500, 1531))
    cost = site.objects.read_bytes - before
    stored = sum(len(body) for body, _ in site.objects._objects.values())
    assert cost < stored * 0.05, (cost, stored)


@pytest.mark.spec("LOG-4")
@given(count=st.integers(0, 80), tail=st.integers(0, 90))
async def test_the_last_lines(count: int, tail: int) -> None:
    site = Site()
    await site.put("n1", numbered(count))
    assert await site.texts(tail=tail) == [f"line {n}" for n in range(max(0, count - tail), count)]


@pytest.mark.spec("LOG-4")
async def test_the_last_lines_of_all_nodes_together(site: Site) -> None:
    await site.put("n1", numbered(40, "a", step_s=1.0))
    await site.put("n2", numbered(40, "b", step_s=1.5))
    whole = await site.texts()
    assert await site.texts(tail=7) == whole[-7:]


@pytest.mark.spec("LOG-4")
async def test_patterns(site: Site) -> None:
    await site.put("n1", numbered(40))
    assert await site.texts(grep=r"line \d$", exclude="[357]") == [
        f"line {n}" for n in (0, 1, 2, 4, 6, 8, 9)
    ]
    page = await site.page(grep="^line 2.$")
    assert [e.seq for e in page.records if isinstance(e, LogBlock)] == list(range(20, 30))
    with pytest.raises(UsageError):
        await site.page(grep="(")


@pytest.mark.spec("LOG-4")
async def test_a_carriage_return_ends_no_line(site: Site) -> None:
    await site.put("n1", [(0, b"10%\r50%\r100%\n"), (1, b"a\x0bb\xc2\x85c\n"), (2, b"done\n")])
    page = await site.page(grep="done")
    assert [each.seq for each in page.records if isinstance(each, LogBlock)] == [2]
    await site.put("n2", numbered(1, "other"))
    page = await site.page(tail=2)
    assert [(e.node, e.seq) for e in page.records if isinstance(e, LogBlock)] == [
        ("n1", 1),
        ("n1", 2),
    ]


async def _read_with_a_hostile_pattern(site: Site) -> float:
    """Attack 24."""
    await site.put("n1", [(0, b"a" * 5000 + b"!\n")])
    begun = time.monotonic()
    page = await site.page(grep="(a+)+$")
    took_s = time.monotonic() - begun
    assert not [each for each in page.records if isinstance(each, LogBlock)]
    return took_s


@pytest.mark.spec("LOG-4")
async def test_a_hostile_pattern_comes_to_an_end(site: Site) -> None:
    await _read_with_a_hostile_pattern(site)


@pytest.mark.timing
@pytest.mark.spec("LOG-4")
async def test_a_hostile_pattern_takes_less_than_two_seconds(site: Site) -> None:
    assert await _read_with_a_hostile_pattern(site) < 2


@pytest.mark.spec("LOG-4")
async def test_streams_and_nodes_and_ranks_are_chosen(site: Site) -> None:
    await site.put("n1", numbered(3, "out"))
    await site.put("n1", numbered(3, "err"), kind=LogKind.STDERR)
    await site.put("n2", numbered(3, "rank4"), source="0.4")
    assert await site.texts(stream=(LogKind.STDERR,)) == ["err 0", "err 1", "err 2"]
    assert await site.texts(nodes=("n2",)) == ["rank4 0", "rank4 1", "rank4 2"]
    page = await site.page(ranks=(4,))
    assert {each.rank for each in page.records if isinstance(each, LogBlock)} == {4}
    with pytest.raises(NotFound):
        await site.page(nodes=("n9",))


@pytest.mark.spec("LOG-3")
async def test_a_gap_is_shown_where_it_is(site: Site) -> None:
    gap = Gap(Position(7 * 5, 5), GapCause.TRUNCATED, 1234, site.ms(5))
    await site.put("n1", numbered(9), gaps=(gap,))
    page = await site.page()
    kinds = [each.type for each in page.records]
    assert kinds.count("gap") == 1
    (found,) = [each for each in page.records if isinstance(each, LogGap)]
    assert (found.seq, found.lost_bytes, found.cause) == (5, 1234, GapCause.TRUNCATED)


@pytest.mark.spec("LOG-3")
async def test_what_is_before_a_gap_and_after_it_is_not_one_line(site: Site) -> None:
    gap = Gap(Position(10, 1), GapCause.TRUNCATED, 1234, site.ms(1))
    await site.put("n1", [(0.0, b"whole\n"), (1.0, b"begun"), (2.0, b"another\n")], gaps=(gap,))
    page = await site.page()
    told = [each.text if isinstance(each, LogBlock) else "gap" for each in page.records]
    assert told == ["whole\n", "begu", "gap", "nanother\n"]
    once = LogDeduplicator()
    records = [each for record in page.records * 2 for each in once.record(record)]
    assert len(records) == 4, "and by whoever comes back: each once"


async def test_a_file_without_a_last_line_feed_is_shown_whole(site: Site) -> None:
    await site.put("n1", [*numbered(3), (4.0, b"no end")])
    assert (await site.texts())[-1] == "no end"


@pytest.mark.spec("AUTH-7", "AUTH-12")
async def test_anothers_job_is_not_there(site: Site) -> None:
    await site.put("n1", numbered(3))
    with pytest.raises(NotFound) as mine:
        await site.reading.page(BOB, "7", LogQuery())
    with pytest.raises(NotFound) as nobodys:
        await site.reading.page(BOB, "77", LogQuery())
    assert mine.value.message.replace("7", "_") == nobodys.value.message.replace("77", "_")


@pytest.mark.spec("LOG-3")
async def test_a_gap_that_grows_is_told_again_with_the_larger_figure(site: Site) -> None:
    """And at once with the largest, where it has grown before anyone looked."""
    feed = NodeFeed(*[None] * 6)  # type: ignore[arg-type]
    name = StreamName("n1", LogKind.STDOUT, LogSource("batch"))
    fed = feed.streams[name.kind, name.source] = FedStream(name)
    fed.keep(Piece(Position(), 1000, False, b"line\n"))
    view = StreamView(name, Archive(site.objects), None, feed)

    def grown(*sizes: int) -> None:
        gaps = (Gap(Position(5, 1), GapCause.QUOTA, size, 2000) for size in sizes)
        fed.gaps = tuple(gaps)

    async def told() -> list[int | None]:
        return [each.lost_bytes async for each in view.items(5) if isinstance(each, Gap)]

    grown(10, 30, 20)
    assert await told() == [30]
    assert await told() == []
    grown(10, 30, 20, 70)
    assert await told() == [70]
    records = LogDeduplicator()
    shown = [gap(name, Gap(Position(5, 1), GapCause.QUOTA, size, 2000)) for size in (30, 30, 70)]
    assert [len(tuple(records.record(each))) for each in shown] == [1, 0, 1]
