"""A job of a thousand nodes is followed: all are heard, and a silent one delays nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputAccess
from lattice.base.signatures import SigningKey
from lattice.domain.stream import NodeStreams, Session, StreamQuestion
from lattice.features.logs.model import LogBlock, LogNote, LogQuery, LogRecord, NoteKind
from lattice.features.logs.service import query_streams
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_service import LogService
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.observe import opening_turns
from lattice.wire.v1 import logs_pb2 as pb
from tests.fakes.cluster import allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.sharing import sharing_parts
from tests.unit.features.logs.test_reading import ALICE

NODES = 1000
pytestmark = pytest.mark.timeout(180)


class Nodes(NodeStreams):
    """Each reports one stream with one line; those in `silent` never answer."""

    def __init__(self, began: float, *silent: str) -> None:
        self.began = began
        self.silent = silent
        self.opened: list[StreamQuestion] = []
        self.opening = self.most_opening = 0

    def linked_to(self, node: str) -> str:
        return node

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        self.opened.append(question)
        self.opening += 1
        self.most_opening = max(self.most_opening, self.opening)
        try:
            await asyncio.sleep(0)
            if question.node in self.silent:
                await asyncio.Event().wait()
        finally:
            self.opening -= 1

        async def serve(session: Session, _opening: bytes) -> None:
            await session.send(pb.FeedTell(began=self.began).SerializeToString())
            report = pb.FeedStreams(streams=[pb.FeedStream(kind="stdout", source="batch")])
            await session.send(pb.FeedTell(streams=report).SerializeToString())
            piece = pb.FeedPiece(
                time_ms=int(self.began * 1000), text=b"of %s\n" % question.node.encode()
            )
            text = pb.FeedText(kind="stdout", source="batch", pieces=[piece])
            await session.send(pb.FeedTell(pushed=text).SerializeToString())
            await asyncio.Event().wait()

        async with answered_by(serve, question.opening) as carrier:
            yield carrier


class Site:
    def __init__(self, *silent: str, count: int = NODES) -> None:
        clock = ManualClock()
        scheduler = InMemoryScheduler(clock)
        began = clock.now().replace(microsecond=0) - timedelta(minutes=5)
        job = allocation(
            7,
            "alice",
            "research",
            submitted=began,
            started=began,
            nodes=f"n[1-{count}]",
            node_count=count,
        )
        scheduler.allocations.append(job)
        scheduler.read()
        self.nodes = Nodes(began.timestamp() + 0.5, *silent)
        sharing = sharing_parts(InMemoryStateStore(clock))
        self.feeds = Feeds(
            self.nodes,
            GrantSigner(SigningKey.generate(), clock),
            clock,
            AttemptFinder(scheduler, clock).of,
        )
        finder = AllocationFinder(scheduler, clock, sharing.shares)
        self.service = LogService(
            scheduler,
            OutputAccess(finder, sharing.notes, clock),
            Archive(InMemoryObjectStore(clock)),
            self.feeds,
            clock,
        )

    async def read(self, lines: int, **query: Any) -> list[LogRecord]:
        """The records of a follower until it has so many lines."""
        found: list[LogRecord] = []
        stream = await self.service.stream(ALICE, "7", LogQuery(follow=True, **query))
        try:
            while sum(isinstance(each, LogBlock) for each in found) < lines:
                record, _ = await anext(stream)
                found.append(record)
        finally:
            await stream.aclose()
        return found


def nodes_of(records: list[LogRecord]) -> list[str]:
    return [each.node for each in records if isinstance(each, LogBlock)]


@pytest.fixture
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    made = Site(*getattr(request, "param", ()))
    yield made
    await made.feeds.aclose()


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("site", [("n500",)], indirect=True)
async def test_a_node_that_never_answers_is_named_and_delays_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_streams, "_NO_OTHER_S", 1.0)
    records = await site.read(NODES - 1)
    assert sorted(nodes_of(records)) == sorted(
        f"n{number}" for number in range(1, NODES + 1) if number != 500
    )
    notes = [each for each in records if isinstance(each, LogNote)]
    away = [(each.node, each.words) for each in notes if each.kind is NoteKind.DISCONNECTED]
    assert away == [("n500", "it has not answered yet")]


@pytest.mark.spec("LOG-7")
async def test_all_viewers_of_a_job_share_its_feeds(site: Site) -> None:
    both = await asyncio.gather(
        site.read(NODES), site.read(NODES), site.read(3, nodes=("n1", "n2", "n3"))
    )
    assert (
        set(nodes_of(both[0]))
        == set(nodes_of(both[1]))
        == {f"n{number}" for number in range(1, NODES + 1)}
    )
    assert sorted(each.node for each in site.nodes.opened) == sorted(set(nodes_of(both[0])))
    assert all(each.shared for each in site.nodes.opened), "no connection for each"
    assert site.nodes.most_opening <= opening_turns._MOST


async def test_a_small_job_has_connections_of_its_own() -> None:
    site = Site(count=8)
    await site.read(8)
    await site.feeds.aclose()
    assert [each.shared for each in site.nodes.opened] == [False] * 8


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("site", [tuple(f"n{number}" for number in range(1, 301))], indirect=True)
async def test_silent_nodes_give_their_turn_to_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may be opened at once are silent, and they were first."""
    monkeypatch.setattr(opening_turns, "_LEAST_S", 0.05)
    monkeypatch.setattr(query_streams, "_FIRST_ANSWER_S", 0.2)
    records = await site.read(NODES - 300)
    assert sorted(nodes_of(records)) == sorted(f"n{number}" for number in range(301, NODES + 1))
