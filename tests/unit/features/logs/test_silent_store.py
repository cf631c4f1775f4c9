"""While the object store is silent, a part is never shown as the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputAccess
from lattice.base.errors import DataUnavailable, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.logs import LogKind, LogSource, Piece, Position, StreamName
from lattice.domain.objects import ObjectInfo
from lattice.domain.stream import NodeStreams
from lattice.features.logs.model import LogNote, LogQuery, NoteKind
from lattice.features.logs.service import query_streams as look
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.live_feeds import Feeds, NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.log_service import LogService
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.sharing import sharing_parts
from tests.unit.features.logs.test_reading import ALICE, Site


class SilentStore(InMemoryObjectStore):
    async def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        await asyncio.Event().wait()
        async for each in super().listing(prefix, after=after):
            yield each


class AwayNodes(NodeStreams):
    def open(self, question: Any) -> Any:
        raise Unavailable(f"{question.node} is away.")

    def linked_to(self, node: str) -> str:
        del node
        return ""


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> LogService:
    monkeypatch.setattr(look, "_STORE_S", 0.02)
    monkeypatch.setattr(look, "_STORE_AGAIN_S", 0.02)
    monkeypatch.setattr(look, "_FIRST_ANSWER_S", 0.2)
    site = Site()
    sharing = sharing_parts(site.state)
    finder = AllocationFinder(site.scheduler, site.clock, sharing.shares)
    return LogService(
        site.scheduler,
        OutputAccess(finder, sharing.notes, site.clock),
        Archive(SilentStore(site.clock)),
        Feeds(
            AwayNodes(),
            GrantSigner(SigningKey.generate(), site.clock),
            site.clock,
            AttemptFinder(site.scheduler, site.clock).of,
        ),
        site.clock,
    )


@pytest.mark.spec("LOG-3")
async def test_with_nothing_at_hand_there_is_no_answer(reading: LogService) -> None:
    with pytest.raises(DataUnavailable, match="does not answer"):
        await reading.page(ALICE, "7", LogQuery())
    with pytest.raises(DataUnavailable):
        await reading.stream(ALICE, "7", LogQuery(follow=True))


@pytest.mark.spec("LOG-3")
async def test_with_a_part_at_hand_what_is_missing_is_said(
    reading: LogService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever would keep it is refused."""
    fed = FedStream(StreamName("n1", LogKind.STDOUT, LogSource("batch")))
    fed.keep(Piece(Position(), 1_700_000_000_000, False, b"still on the node\n"))

    def begin(feed: NodeFeed, *given: Any) -> None:
        plain_begin(feed, *given)
        feed.streams[LogKind.STDOUT, LogSource("batch")] = fed

    plain_begin = NodeFeed.__init__
    monkeypatch.setattr(NodeFeed, "__init__", begin)
    page = await reading.page(ALICE, "7", LogQuery(nodes=("n1",)))
    notes = [each for each in page.records if isinstance(each, LogNote)]
    assert [each.kind for each in notes] == [NoteKind.ARCHIVE_AWAY, NoteKind.DISCONNECTED]
    assert not page.finished
    with pytest.raises(Unavailable):
        await reading.streams(ALICE, "7", LogQuery())
    with pytest.raises(Unavailable):
        await reading.raw(ALICE, "7", LogQuery(nodes=("n1",)), "batch")
