"""One question, one task: what comes, in order, and a node that need not wait afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from lattice.domain.pipe import Pipe
from lattice.domain.stream import CarrierLost, StreamKind, StreamQuestion
from lattice.observe.node_questions import node_answers

QUESTION = StreamQuestion(node="n1", kind=StreamKind.FACTS, session="0" * 32, opening=b"", grant="")


class Node:
    """`NodeStreams` and the carrier to its only node, which has said all it will from the first."""

    def __init__(self, *messages: bytes, last: bool = True) -> None:
        self.pipe = Pipe()
        for number, message in enumerate(messages, 1):
            self.pipe.write(message, last=last and number == len(messages))
        self.pipe.connected()
        self.frames = [*self.pipe.frames()]

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[Node]:
        assert question is QUESTION
        yield self

    async def send(self, frame: bytes) -> None:
        self.pipe.receive(frame)
        self.frames += self.pipe.frames()

    async def receive(self) -> bytes:
        if not self.frames:
            raise CarrierLost("the other side has ended the stream")
        return self.frames.pop(0)

    def linked_to(self, node: str) -> str:
        return node


async def answers(node: Node) -> list[bytes]:
    async with aclosing(node_answers(node, QUESTION)) as told:
        return [each async for each in told]


async def test_every_message_in_order() -> None:
    assert await answers(Node(b"one", b"two", b"three")) == [b"one", b"two", b"three"]


async def test_an_empty_last_message_only_ends_it() -> None:
    assert await answers(Node(b"one", b"")) == [b"one"]


async def test_an_empty_message_before_the_last_is_one() -> None:
    assert await answers(Node(b"", b"one")) == [b"", b"one"]


async def test_the_node_is_done_before_its_last_message_is_looked_at() -> None:
    node = Node(b"one")
    async with aclosing(node_answers(node, QUESTION)) as told:
        assert await anext(told) == b"one"
        assert node.pipe.over


async def test_a_node_that_breaks_off_is_lost() -> None:
    with pytest.raises(CarrierLost, match="ended the stream"):
        await answers(Node(b"one", last=False))


async def test_what_is_no_frame_is_lost_too() -> None:
    node = Node(b"one")
    node.frames = [b"?"]
    with pytest.raises(CarrierLost, match="can't be read"):
        await answers(node)


async def test_more_than_a_window_is_read_to_its_end() -> None:
    parts = [bytes([number]) * 200_000 for number in range(30)]
    async with asyncio.timeout(60):
        assert await answers(Node(*parts)) == parts
