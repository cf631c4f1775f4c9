"""What reading logs may take of a replica: turns of the event loop, memory, time, and places."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.output import OutputAccess
from lattice.base.errors import RateLimited
from lattice.domain.logs import Gap, GapCause, Position
from lattice.features.logs.model import LogBlock, LogPage, LogQuery, LogRecord, NoteKind
from lattice.features.logs.service import frames, view
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.bounds import Admission, PageBudget, WorkBounds
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_service import LogService
from lattice.features.logs.service.search import LinePattern
from lattice.foundation.attempt_finder import AttemptFinder
from tests.eventually import eventually_async
from tests.fakes.sharing import sharing_parts
from tests.unit.features.logs.test_reading import (
    ALICE,
    FRAME_LINES,
    NoNodes,
    Site,
    numbered,
    texts_of,
)

LINE_BYTES = 25_000
FRAMES = 40


class BoundedSite(Site):
    """With other bounds than the usual ones."""

    def __init__(self, budget: PageBudget | None = None, **bounds: Any) -> None:
        super().__init__()
        self.bounds = WorkBounds(budget or PageBudget(), **bounds)
        sharing = sharing_parts(self.state)
        finder = AllocationFinder(self.scheduler, self.clock, sharing.shares)
        self.reading = LogService(
            self.scheduler,
            OutputAccess(finder, sharing.notes, self.clock),
            Archive(self.objects),
            Feeds(NoNodes(), None, self.clock, AttemptFinder(self.scheduler, self.clock).of),  # type: ignore[arg-type]
            self.clock,
            bounds=self.bounds,
        )

    async def pages(self, **query: Any) -> list[LogPage]:
        found = [await self.page(**query)]
        while found[-1].cursor:
            assert len(found) < 2000, "it gets on"
            found.append(await self.page(**query, cursor=found[-1].cursor))
        return found


def large(frames: int = FRAMES) -> list[tuple[float, bytes]]:
    """Lines that fill a frame by tens."""
    count = frames * FRAME_LINES
    return [(n // FRAME_LINES, b"%06d%s\n" % (n, b"x" * LINE_BYTES)) for n in range(count)]


def shown(pages: list[LogPage]) -> list[tuple[str, int, int, str]]:
    """What all pages say, line by line: whose, its number, its offset, its text."""
    found = []
    for block in (each for page in pages for each in page.records if isinstance(each, LogBlock)):
        at = block.offset
        for number, line in enumerate(block.text.splitlines(keepends=True)):
            found.append((block.node, block.seq + number, at, line))
            at += len(line)
    return found


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
async def test_a_search_that_finds_nothing_leaves_the_event_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No search runs on the loop, and another task has turns between any two batches."""
    site = BoundedSite()
    await site.put("n1", large(), chunk_lines=100)
    turns = 0
    searched: list[tuple[int, int]] = []
    lines = LinePattern.lines

    def recorded(pattern: LinePattern, text: bytes) -> Iterator[tuple[int, int]]:
        searched.append((threading.get_ident(), turns))
        return lines(pattern, text)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(LinePattern, "lines", recorded)
    beside = asyncio.create_task(other())
    page = await site.page(grep="no such line", limit=10)
    beside.cancel()
    assert not page.records
    assert threading.get_ident() not in {thread for thread, _ in searched}
    # Each line is a slice of its own here; the last of a batch reaches its size.
    at = [when for _, when in searched]
    assert len(at) > FRAMES
    most_in_one_turn = max(at.count(each) for each in set(at))
    assert most_in_one_turn <= view._MOST_BATCH_BYTES // LINE_BYTES + 1
    assert turns > len(at) // most_in_one_turn


class Held(bytes):
    """Text whose memory is counted until it is let go of."""

    now = most = 0

    def __new__(cls, text: bytes) -> Self:
        made = super().__new__(cls, text)
        Held.now += len(text)
        Held.most = max(Held.most, Held.now)
        return made

    def __del__(self) -> None:
        Held.now -= len(self)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
@pytest.mark.parametrize(
    "query", [{"grep": "no such line"}, {"tail": 10_000}, {"tail": 10_000, "grep": "no such"}]
)
async def test_a_search_holds_a_few_frames_of_a_log(
    monkeypatch: pytest.MonkeyPatch, query: dict[str, Any]
) -> None:
    site = BoundedSite()
    for node in ("n1", "n2"):
        await site.put(node, large(), chunk_lines=400)
    expand = frames.expand
    monkeypatch.setattr(frames, "expand", lambda *given: Held(expand(*given)))
    Held.now = Held.most = 0
    pages = await site.pages(**query, limit=10_000)
    assert len(pages) > 1 or "grep" in query
    frame_bytes = FRAME_LINES * LINE_BYTES
    assert 0 < Held.most <= 8 * frame_bytes, (Held.most / frame_bytes, 2 * FRAMES)
    assert Held.now == 0


@pytest.mark.spec("LOG-6", "LIMIT-4")
@pytest.mark.threat("heavy-search")
async def test_a_page_is_bounded_in_bytes() -> None:
    site = BoundedSite(PageBudget(answer_bytes=1_000_000))
    await site.put("n1", large(12), chunk_lines=40)
    pages = await site.pages(limit=10_000)
    sizes = [sum(len(e.text) for e in page.records if isinstance(e, LogBlock)) for page in pages]
    assert max(sizes) <= 1_000_000 + FRAME_LINES * (LINE_BYTES + 10)
    assert len(pages) == 4
    assert [number for _, number, _, _ in shown(pages)] == list(range(12 * FRAME_LINES))


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
async def test_a_page_ends_when_its_time_is_over() -> None:
    site = BoundedSite(PageBudget(seconds=3.0))
    await site.put("n1", numbered(60))
    monotonic = site.clock.monotonic
    calls = 0

    def later() -> float:
        nonlocal calls
        calls += 1
        return monotonic() + calls

    site.clock.monotonic = later  # type: ignore[method-assign]
    page = await site.page(limit=1000)
    assert page.cursor
    assert not page.finished
    found = [page]
    while found[-1].cursor:
        found.append(await site.page(limit=1000, cursor=found[-1].cursor))
    assert len(found) > 2
    assert [number for _, number, _, _ in shown(found)] == list(range(60))


texts = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([b"0: a\n", b"1: b\n", b"2: ab\n", b"0: no\n", b"\n", b"1: a\n0: b\n"]),
    ),
    max_size=40,
)


@pytest.mark.spec("LOG-4", "LOG-6", "LIMIT-4")
@given(
    first=texts,
    second=texts,
    labelled=st.booleans(),
    gaps=st.booleans(),
    ends=st.booleans(),
    query=st.fixed_dictionaries(
        {
            "grep": st.sampled_from(["", "a", "^0", r"\A1", "never"]),
            "exclude": st.sampled_from(["", "b", "o$"]),
            "ranks": st.sampled_from([(), (), (0,), (1, 2)]),
            "tail": st.sampled_from([None, None, 0, 1, 7, 30]),
        }
    ),
    limit=st.integers(1, 9),
    answer_bytes=st.integers(1, 60),
    scanned_bytes=st.integers(1, 60),
)
async def test_pages_are_together_what_one_unbounded_answer_is(  # noqa: PLR0917 - what varies
    first: list[tuple[int, bytes]],
    second: list[tuple[int, bytes]],
    labelled: bool,
    gaps: bool,
    ends: bool,
    query: dict[str, Any],
    limit: int,
    answer_bytes: int,
    scanned_bytes: int,
) -> None:
    """Whatever is written, however it is stored, filtered and cut."""
    if not labelled:
        query["ranks"] = ()  # nothing would be of any
    unbounded = BoundedSite(PageBudget(1 << 60, 1 << 60, 1e9))
    bounded = BoundedSite(PageBudget(answer_bytes, scanned_bytes, 1e9))
    for site in (unbounded, bounded):
        for node, lines in (("n1", first), ("n2", second)):
            # As capture would place it: after the whole lines before it.
            before = b"".join(line for _, line in lines)[:5].count(b"\n")
            hole = (Gap(Position(5, before), GapCause.TRUNCATED, 9, site.ms(0)),) if gaps else ()
            second_s, told = 0.0, []
            for step, line in lines:
                second_s += step
                told.append((second_s, line))
            if ends and told:
                told.append((second_s + 1, b"0: a no line feed"))
            await site.put(node, told, source="0", labelled=labelled, gaps=hole, chunk_lines=20)
    whole = await unbounded.pages(**query, limit=10_000)
    pages = await bounded.pages(**query, limit=limit)
    assert shown(pages) == shown(whole)
    assert gaps_of(pages) == gaps_of(whole)
    assert [page.finished for page in pages] == [*([False] * (len(pages) - 1)), True]
    got = [each for page in pages for each in page.records if isinstance(each, LogBlock)]
    # What has no line feed is known to be a line once everything else was read.
    assert ends or all(one.time <= other.time for one, other in pairwise(got))


@pytest.mark.spec("LOG-3", "LOG-6")
async def test_pages_get_past_a_gap_and_past_a_line_without_an_end() -> None:
    site = BoundedSite()
    gap = Gap(Position(7 * 2, 2), GapCause.TRUNCATED, 9, site.ms(2))
    await site.put("n1", [*numbered(5), (9.0, b"no end")], gaps=(gap,))
    pages = await site.pages(limit=1)
    assert [line for *_, line in shown(pages)] == [*(f"line {n}\n" for n in range(5)), "no end"]
    assert gaps_of(pages) == {("n1", 14)}


@pytest.mark.spec("LOG-4", "LOG-6")
async def test_pages_of_the_last_lines_of_many_nodes_are_all_of_them() -> None:
    site = BoundedSite()
    for node in ("n1", "n2"):
        await site.put(node, numbered(60, node))
    whole = await site.texts(tail=50)
    pages = await site.pages(tail=50, limit=7)
    assert len(whole) == 50
    assert [line for page in pages for line in texts_of(page)] == whole


def gaps_of(pages: list[LogPage]) -> set[tuple[str, int]]:
    """One that lies where a page ends is told on both; readers drop the second."""
    found = (each for page in pages for each in page.records)
    return {(each.node, each.offset) for each in found if each.type == "gap"}


async def streamed(site: Site, **query: Any) -> list[tuple[LogRecord, str]]:
    return [each async for each in await site.reading.stream(ALICE, "7", LogQuery(**query))]


@pytest.mark.spec("LOG-4")
async def test_a_stream_in_which_nothing_matches_says_how_far_it_is() -> None:
    """Whoever is cut off goes on from there, not from the beginning."""
    site = BoundedSite()
    await site.put("n1", large(8), chunk_lines=40)
    monotonic = site.clock.monotonic
    calls = 0

    def later() -> float:
        nonlocal calls
        calls += 1
        return monotonic() + 2.0 * calls

    site.clock.monotonic = later  # type: ignore[method-assign]
    told = await streamed(site, grep="no such line")
    assert {each.type for each, _ in told} == {"note"}
    assert {each.kind for each, _ in told if each.type == "note"} == {NoteKind.ALIVE}
    assert len({cursor for _, cursor in told}) > 2


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
async def test_a_caller_has_so_many_pages_at_once() -> None:
    refused: list[str] = []
    pages = Admission("read_logs", per_caller=2, in_all=3, refused=refused.append)
    site = BoundedSite(pages=pages)
    await site.put("n1", numbered(5))
    with pages.admitted(ALICE.sub):
        assert await site.texts()
        assert pages.open == 1, "given back with the page"
        with pages.admitted(ALICE.sub), pytest.raises(RateLimited) as caught:
            await site.page()
    assert caught.value.retry_after_s == 1
    with pages.admitted("b"), pages.admitted("c"), pages.admitted("d"), pytest.raises(RateLimited):
        await site.page()
    assert refused == ["read_logs", "read_logs"]
    assert await site.texts()
    assert pages.open == 0


@pytest.mark.spec("LIMIT-4")
async def test_a_download_counts_until_it_ends_or_its_reader_leaves() -> None:
    downloads = Admission("read_raw_log", per_caller=1, in_all=9)
    site = BoundedSite(downloads=downloads)
    await site.put("n1", numbered(50))
    query = LogQuery(nodes=("n1",))
    end, text = await site.reading.raw(ALICE, "7", query, "batch")
    with pytest.raises(RateLimited):
        await site.reading.raw(ALICE, "7", query, "batch")
    assert len(b"".join([piece async for piece in text])) == end
    assert downloads.open == 0
    _, text = await site.reading.raw(ALICE, "7", query, "batch")
    assert downloads.open == 1
    del text  # nobody has read any of it
    await eventually_async(lambda: downloads.open == 0)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
async def test_a_page_nobody_waits_for_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = BoundedSite()
    await site.put("n1", large(), chunk_lines=40)
    begun, go_on = threading.Event(), threading.Event()
    searched = 0
    lines = LinePattern.lines

    def held(pattern: LinePattern, text: bytes) -> Iterator[tuple[int, int]]:
        nonlocal searched
        searched += 1
        begun.set()
        go_on.wait()
        return lines(pattern, text)

    monkeypatch.setattr(LinePattern, "lines", held)
    asked = asyncio.create_task(site.page(grep="no such line"))
    await asyncio.to_thread(begun.wait)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert site.bounds.pages.open == 0
    go_on.set()
    await site.bounds.turns.run(ALICE.sub, iter(()))
    assert searched == 1
    reads = site.objects.reads
    for _ in range(50):
        await asyncio.sleep(0)
    assert site.objects.reads == reads
