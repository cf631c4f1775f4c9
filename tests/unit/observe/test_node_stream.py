"""A lasting stream whose node can't be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.stream import Carrier, StreamKind, StreamQuestion
from lattice.observe import node_stream
from lattice.observe.node_stream import NodeStream
from lattice.observe.opening_turns import OpeningTurns
from lattice.wire.conduit import Conduit
from tests.eventually import eventually_async


class LostNode:
    """The port `NodeStreams`, for a node that does not answer."""

    def __init__(self) -> None:
        self.replica = ""
        self.asked = self.checked = 0

    def linked_to(self, node: str) -> str:  # noqa: ARG002
        self.checked += 1
        return self.replica

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[Carrier]:
        self.asked += 1
        raise Unavailable(f"There is no way to node {question.node} now.")
        yield


class Stream(NodeStream):
    def __init__(self, nodes: LostNode) -> None:
        super().__init__("n1", nodes, OpeningTurns())
        self.reasons: list[str] = []

    def question(self, session: str, *, resume: bool) -> StreamQuestion:
        return StreamQuestion(
            node=self.node,
            kind=StreamKind.LOGS,
            session=session,
            opening=b"",
            grant="",
            resume=resume,
        )

    async def read(self, conduit: Conduit) -> None:
        await conduit.receive()

    def lost(self, why: str) -> None:
        self.reasons.append(why)

    def answered(self) -> None:
        raise AssertionError("nobody answers")

    def begin(self, conduit: Conduit) -> None:
        pass


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_stream, "_PAUSES_S", (0.0,) * 5)
    monkeypatch.setattr(node_stream, "_LINK_CHECK_S", 0.001)


@pytest.mark.usefixtures("quick")
@pytest.mark.spec("LOG-7", "WATCH-1")
async def test_a_node_without_a_link_is_asked_again_once_it_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of streams that ask all the time would keep a server from being linked to."""
    monkeypatch.setattr(node_stream, "_WITHOUT_LINK_S", 3600.0)
    node = LostNode()
    stream = Stream(node)
    running = asyncio.create_task(stream.run())
    try:
        await eventually_async(lambda: node.checked > 20)
        assert node.asked == 5
        assert stream.reasons == ["There is no way to node n1 now"] * 5
        node.replica = "r2"
        await eventually_async(lambda: node.asked > 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.usefixtures("quick")
async def test_the_reason_is_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_stream, "_WITHOUT_LINK_S", 0.01)
    node = LostNode()
    running = asyncio.create_task(Stream(node).run())
    try:
        await eventually_async(lambda: node.asked > 6)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
