"""What agents of two earlier releases sent, as recorded, read by the servers of today.

`tests/fixtures/wire/agent-VERSION.jsonl` has the messages of one agent of that release: a job wrote
forty lines, and its owner asked for everything that a node answers. `python -m lab.record_wire`
makes it. Each message must be understood whole, and mean what it meant.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, unknown_fields
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.domain.logchunk import frames_of, piece_of, verify
from lattice.domain.logs import Piece
from lattice.domain.pipe import FrameKind
from lattice.domain.stream import StreamKind
from lattice.features.diag.convert import StacksEnd, facts_of, stack_news_of
from lattice.features.link.convert import health_of
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.features.telemetry.convert.batches import batch_of
from lattice.features.telemetry.convert.snapshots import NodeMeasured, news_of
from lattice.wire.guard import declared_permissions
from lattice.wire.v1 import link_pb2, logs_pb2, telemetry_pb2
from tests.unit.features.logs.test_feed import attempt_began

TAPES = sorted((Path(__file__).parents[1] / "fixtures" / "wire").glob("agent-*.jsonl"))
TEXT = b"".join(b"line %d\n" % number for number in range(40))
_HEAD_BYTES = 17
_OF_KIND = {
    StreamKind.LOGS: "lattice.v1.FeedTell",
    StreamKind.METRICS: "lattice.v1.LookTell",
    StreamKind.FACTS: "lattice.v1.FactsTell",
    StreamKind.STACKS: "lattice.v1.StacksTell",
}
"""Facts come after a snapshot of the job, on the same stream."""


class Tape:
    """The messages of one agent."""

    def __init__(self, file: Path) -> None:
        about, *self.lines = (json.loads(line) for line in file.read_text().splitlines())
        self.version: str = about["version"]
        self.node: str = about["node"]
        self.job: int = about["job"]

    def sent(self, rpc: str) -> list[bytes]:
        return [
            bytes.fromhex(each["message"])
            for each in self.lines
            if (each["rpc"], each["from"]) == (rpc, "agent")
        ]

    def streams(self, kind: StreamKind) -> list[list[bytes]]:
        """What the agent wrote on each stream of a kind, without what carries it."""
        tickets = {
            down.ticket.id: down.ticket.kind
            for each in self.lines
            if (each["rpc"], each["from"]) == ("LinkService/Link", "server")
            and (down := link_pb2.LinkDown.FromString(bytes.fromhex(each["message"]))).HasField(
                "ticket"
            )
        }
        found: dict[int, list[bytes]] = defaultdict(list)
        kinds: dict[int, str] = {}
        for each in self.lines:
            if (each["rpc"], each["from"]) != ("LinkService/Carry", "agent"):
                continue
            frame = link_pb2.Frame.FromString(bytes.fromhex(each["message"]))
            if frame.HasField("open"):
                kinds[each["call"]] = tickets.get(frame.open.ticket, "")
            elif frame.body[0] in {FrameKind.DATA, FrameKind.END}:
                found[each["call"]].append(frame.body[_HEAD_BYTES:])
        return [
            [payload for payload in payloads if payload]
            for call, payloads in found.items()
            if kinds.get(call) == kind.value
        ]


@pytest.fixture(params=TAPES, ids=lambda file: file.stem)
def tape(request: pytest.FixtureRequest) -> Tape:
    return Tape(request.param)


def unknown_of(message: Message) -> Iterator[str]:
    """Fields that the message has and today's proto does not know."""
    for each in unknown_fields.UnknownFieldSet(message):
        yield f"{message.DESCRIPTOR.name} {each.field_number}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            several = value if field.is_repeated else (value,)
            for inner in several:
                yield from unknown_of(inner)


def test_two_releases_are_recorded() -> None:
    assert [Tape(each).version for each in TAPES] == ["0.0.1", "0.0.2"]


@pytest.mark.spec("AUTH-9", "LOG-3")
def test_every_message_is_understood_whole(tape: Tape) -> None:
    declared_permissions()
    pool, asked = descriptor_pool.Default(), set()
    for each in tape.lines:
        if each["from"] != "agent":
            continue
        service, _, name = each["rpc"].partition("/")
        method = pool.FindServiceByName(f"lattice.v1.{service}").methods_by_name[name]
        message = GetMessageClass(method.input_type).FromString(bytes.fromhex(each["message"]))
        assert list(unknown_of(message)) == []
        asked.add(each["rpc"])
    assert asked >= {
        *("LinkService/Link", "LinkService/Carry"),
        *("LogIntake/AdmitOutput", "LogIntake/StoreChunk"),
        *("MetricIntake/FollowJobs", "MetricIntake/StoreSamples"),
    }
    for kind, name in _OF_KIND.items():
        streams = tape.streams(kind)
        assert streams, kind
        answers = GetMessageClass(pool.FindMessageTypeByName(name))
        for stream in streams:
            for payload in stream[kind is StreamKind.FACTS :]:
                assert list(unknown_of(answers.FromString(payload))) == []


@pytest.mark.spec("OPS-8")
def test_its_hello_names_node_and_version_and_its_health_is_read(tape: Tape) -> None:
    ups = [link_pb2.LinkUp.FromString(each) for each in tape.sent("LinkService/Link")]
    hello = ups[0].hello
    assert (hello.node, hello.agent_version) == (tape.node, tape.version)
    assert hello.boot_id
    assert hello.instance
    health = health_of(hello.health)
    # It reports nothing of itself, and that is known to be unknown.
    assert (health.agent.helper, health.agent.spool_bytes) == ("", None)
    pings = [each.ping.number for each in ups[1:] if each.HasField("ping")]
    assert pings == sorted(pings)
    assert pings


@pytest.mark.spec("LOG-3")
def test_its_chunks_have_every_line(tape: Tape) -> None:
    chunks: dict[int, bytes] = defaultdict(bytes)
    heads = {}
    for each in tape.lines:
        if (each["rpc"], each["from"]) == ("LogIntake/StoreChunk", "agent"):
            part = logs_pb2.ChunkPart.FromString(bytes.fromhex(each["message"]))
            if part.HasField("head"):
                heads[each["call"]] = part.head
            chunks[each["call"]] += part.body
    text = b""
    for call, head in sorted(heads.items(), key=lambda each: each[1].number):
        if (head.job_id, head.kind) == (tape.job, "stdout"):
            assert len(chunks[call]) == head.size_bytes
            index = verify(chunks[call])
            for placed, stored in frames_of(chunks[call], index):
                text += piece_of(placed, stored).text
    assert text == TEXT


@pytest.mark.spec("LOG-1", "LOG-4")
async def test_its_feed_has_every_line(tape: Tape) -> None:
    async def silent(*_: Any) -> Any:
        raise Unavailable("Slurm does not answer.")

    class Conduit:
        def __init__(self, messages: list[bytes]) -> None:
            self._messages = iter(messages)

        async def send(self, message: bytes) -> None:
            """Nothing more than what was recorded is answered."""

        async def receive(self) -> bytes | None:
            await asyncio.sleep(0)
            return next(self._messages, None)

    (messages, *_) = tape.streams(StreamKind.LOGS)
    tells = [logs_pb2.FeedTell.FromString(each) for each in messages]
    anything: Any = None
    began = attempt_began(tells[0].began)
    feed = NodeFeed(began, tape.node, anything, anything, SystemClock(), silent)
    conduit: Any = Conduit(messages)
    await feed.read(conduit)
    (stream,) = feed.streams.values()
    begin = next(each.pushed for each in tells if each.HasField("pushed")).pieces[0].offset
    pushed = b"".join(each.text for each in stream.pieces(begin) if isinstance(each, Piece))
    assert pushed == TEXT[begin:]
    assert (stream.end.offset, stream.end.line) == (len(TEXT), 40)
    # What came before was asked for; an answer of the same form.
    fetched = [piece for each in tells for piece in each.fetched.pieces]
    assert all(TEXT[each.offset :].startswith(each.text) for each in fetched)


@pytest.mark.spec("TOP-2", "WATCH-1")
def test_its_samples_and_snapshots_are_read(tape: Tape) -> None:
    jobs = {}
    for each in tape.sent("MetricIntake/StoreSamples"):
        found = batch_of(telemetry_pb2.SampleBatch.FromString(each))
        jobs |= {job.job_id: job for job in found.jobs}
    assert tape.job in jobs
    assert {"cpu_seconds_total", "memory_used_bytes"} <= {
        series.metric for series in jobs[tape.job].series
    }
    news = [
        news_of(payload, tape.node, tape.job)
        for stream in tape.streams(StreamKind.METRICS)
        for payload in stream
    ]
    measured = [each for each in news if isinstance(each, NodeMeasured)]
    assert measured
    assert all(each.snapshot.now.samples for each in measured)


@pytest.mark.spec("DIAG-1", "DIAG-6")
def test_its_facts_and_stacks_are_read(tape: Tape) -> None:
    facts = [
        found
        for stream in tape.streams(StreamKind.FACTS)
        for payload in stream[1:]
        if (found := facts_of(payload, tape.node)) is not None
    ]
    assert facts
    assert all(each.facts.tasks and each.facts.mounts for each in facts)
    stacks = [
        stack_news_of(payload, tape.node)
        for stream in tape.streams(StreamKind.STACKS)
        for payload in stream
    ]
    assert any(isinstance(each, StacksEnd) for each in stacks)
    assert len(stacks) > 1
