"""The feed of an agent that knows no frames, as recorded, with a server of today.

`tests/fixtures/wire/logs_before_frames.jsonl` has every message of one feed, in order. The server's
first one says that it takes frames; such an agent takes that for a question about no stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.domain.logs import Piece, Position
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.wire.v1 import logs_pb2 as pb
from tests.unit.features.logs.test_feed import KEY, Capture, Server, attempt_began, fed

TAPE = Path(__file__).parents[1] / "fixtures" / "wire" / "logs_before_frames.jsonl"
TEXT = b"line 0\nline 1\nline 2\n" + b"x" * 5000 + b"\n"


def messages(side: str) -> Iterator[bytes]:
    for line in TAPE.read_text().splitlines():
        each = json.loads(line)
        if each["from"] == side:
            yield bytes.fromhex(each["message"])


class TapedAgent:
    """The conduit to an agent: what it sends is recorded, what it gets is kept."""

    def __init__(self) -> None:
        self._messages = messages("agent")
        self.received: list[bytes] = []

    async def send(self, message: bytes) -> None:
        self.received.append(message)

    async def receive(self) -> bytes | None:
        await asyncio.sleep(0)
        return next(self._messages, None)


@pytest.mark.spec("LOG-1", "LOG-3")
async def test_a_server_of_today_reads_the_feed_of_an_agent_before_frames() -> None:
    anything: Any = None

    async def silent(*_: Any) -> Any:
        raise Unavailable("Slurm does not answer.")

    feed = NodeFeed(attempt_began(1.5), "n1", anything, anything, SystemClock(), silent)
    agent: Any = TapedAgent()
    await feed.read(agent)
    assert agent.received == list(messages("server"))[:1]
    stream = feed.streams[KEY]
    pieces = [each for each in stream.pieces(0) if isinstance(each, Piece)]
    assert b"".join(each.text for each in pieces) == TEXT
    assert stream.end == Position(len(TEXT), 4)
    assert feed.over
    assert not feed.trouble


@pytest.mark.spec("LOG-1", "LOG-3")
async def test_an_agent_of_today_sends_text_to_a_server_before_frames(tmp_path: Path) -> None:
    capture, server = Capture(tmp_path), Server()
    large = b"0123456789abcde\n" * 20_000

    async def writes() -> None:
        await server.until(lambda: any(each.HasField("streams") for each in server.heard))
        capture.write(large)
        question = list(messages("server"))[1]
        server.questions.put_nowait(question)
        await server.until(lambda: len(server.text) >= len(large) and bool(server.fetched))

    await fed(capture, server, writes)
    assert server.text == large
    assert large.startswith(server.fetched[0].pieces[0].text)
    assert all(set(_fields(each)) <= {1, 2, 3, 4, 5, 6} for each in server.heard)


def _fields(message: pb.FeedTell) -> Iterator[int]:
    """The numbers of the fields of a text."""
    for field, _ in message.pushed.ListFields():
        yield field.number
