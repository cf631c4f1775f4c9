"""Agents and replicas of the wire before lanes, as recorded, with those of today.

`tests/fixtures/wire/before_lanes.jsonl` has every message of one link and one echo, in order. A
`TapedAgent` plays the agent's side to a replica of today, a `TapedReplica` the replica's side to an
agent of today. Only names that are drawn anew each time are replaced: addresses and tickets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.access.grants import GrantChecker
from lattice.adapters.pki.replica import ReplicaIdentity
from lattice.domain.pipe import FrameKind
from lattice.wire.carriers import EOF, STREAM_OPTIONS
from lattice.wire.v1 import link_pb2 as pb
from tests.fakes.manual_clock import ManualClock
from tests.integration.link.site import Caller, NodeKey, Site, free_port

TAPE = Path(__file__).parents[1] / "fixtures" / "wire" / "before_lanes.jsonl"
_HEAD_BYTES = 17
_MESSAGES = {FrameKind.DATA, FrameKind.END}
SENT = (b"one", b"two" * 1000, b"last")

pytestmark = pytest.mark.timeout(120)


class Tape:
    """The recorded messages of one side."""

    def __init__(self) -> None:
        about, *lines = (json.loads(line) for line in TAPE.read_text().splitlines())
        self.node: str = about["node"]
        self.time = datetime.fromtimestamp(about["time"], UTC)
        self.grant_keys = [bytes.fromhex(each) for each in about["grant_keys"]]
        self._lines = lines

    def of(self, rpc: str, side: str) -> Iterator[bytes]:
        for each in self._lines:
            if (each["rpc"], each["from"]) == (rpc, side):
                yield bytes.fromhex(each["message"])

    def turns(self, rpc: str, side: str) -> Iterator[tuple[bytes, int]]:
        """What that side sent, each with how many messages of the other came before it."""
        received = 0
        for each in self._lines:
            if each["rpc"] == rpc and each["from"] == side:
                yield bytes.fromhex(each["message"]), received
            elif each["rpc"] == rpc:
                received += 1


@pytest.fixture
def tape() -> Tape:
    return Tape()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Site(tmp_path) as site:
        yield site


class TapedAgent:
    """Links with the recorded hello, and answers a ticket with the recorded frames."""

    def __init__(self, tape: Tape, key: NodeKey, address: str) -> None:
        self._tape = tape
        self._key = key
        self._address = address
        self.tickets: list[bytes] = []

    def _channel(self) -> aio.Channel:
        options = [*self._key.channel_options(), *STREAM_OPTIONS]
        return aio.secure_channel(self._address, self._key.channel_credentials(), options=options)

    async def run(self) -> None:
        async with self._channel() as channel:
            dial: Any = channel.stream_stream
            link = dial("/lattice.v1.LinkService/Link")()
            for message in self._tape.of("Link", "agent"):
                await link.write(message)
            while (message := await link.read()) is not EOF:
                down = pb.LinkDown.FromString(message)
                if down.HasField("ticket"):
                    self.tickets.append(message)
                    await self._carry(down.ticket.id)

    async def _carry(self, ticket: str) -> None:
        async with self._channel() as channel:
            dial: Any = channel.stream_stream
            call, received = dial("/lattice.v1.LinkService/Carry")(), 0
            for message, before in self._tape.turns("Carry", "agent"):
                while received < before:
                    assert await call.read() is not EOF
                    received += 1
                await call.write(_with_ticket(message, ticket))
            while await call.read() is not EOF:
                pass


def _with_ticket(message: bytes, ticket: str) -> bytes:
    frame = pb.Frame.FromString(message)
    if not frame.HasField("open"):
        return message
    frame.open.ticket = ticket
    return frame.SerializeToString()


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("lanes", [True, False])
async def test_an_agent_before_lanes_serves_a_stream_to_a_replica_of_today(
    site: Site, tape: Tape, lanes: bool
) -> None:
    site.lanes = lanes
    server = await site.server("a")
    key = NodeKey(site.authority, tape.node, timedelta(hours=1))
    agent = TapedAgent(tape, key, server.address)
    running = asyncio.create_task(agent.run())
    caller = Caller(tape.node, [f"127.0.0.1:{server.people_port}"])
    try:
        for each in SENT:
            await caller.conduit.send(each, last=each == b"last")
            assert await caller.conduit.receive() == each
        assert await caller.conduit.receive() is None
        await caller.finished()
        assert len(agent.tickets) == 1
        assert not server.defects
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await caller.stop()


class TapedReplica:
    """Sends an agent the recorded welcome and ticket, and then the caller's frames."""

    def __init__(self, tape: Tape, address: str) -> None:
        self._tape = tape
        self.address = address
        self.received: list[pb.Frame] = []
        self.carried = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        return grpc.method_handlers_generic_handler(
            "lattice.v1.LinkService",
            {
                "Link": grpc.stream_stream_rpc_method_handler(self.link),
                "Carry": grpc.stream_stream_rpc_method_handler(self.carry),
            },
        )

    async def link(self, _requests: Any, context: Any) -> None:
        assert pb.LinkUp.FromString(await context.read()).HasField("hello")
        for message in self._tape.of("Link", "server"):
            await context.write(self._to_here(message))
        while await context.read() is not EOF:
            pass

    def _to_here(self, message: bytes) -> bytes:
        down = pb.LinkDown.FromString(message)
        if down.HasField("welcome"):
            down.welcome.replicas[:] = [self.address]
        elif down.HasField("ticket"):
            down.ticket.dial = self.address
        else:
            return message
        return down.SerializeToString()

    async def carry(self, _requests: Any, context: Any) -> None:
        for message, before in self._tape.turns("Carry", "server"):
            while len(self.received) < before:
                self.received.append(pb.Frame.FromString(await context.read()))
            await context.write(message)
        while (message := await context.read()) is not EOF:
            self.received.append(pb.Frame.FromString(message))
        self.carried.set()


@asynccontextmanager
async def replica_of(tape: Tape, site: Site) -> AsyncIterator[TapedReplica]:
    identity = ReplicaIdentity(site.files, "a", ["127.0.0.1"], site.clock)
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    replica = TapedReplica(tape, f"127.0.0.1:{free_port()}")
    server.add_generic_rpc_handlers((replica.handlers(),))
    server.add_secure_port(replica.address, identity.grpc_server_credentials())
    await server.start()
    try:
        yield replica
    finally:
        await server.stop(None)


@pytest.mark.spec("LOG-3")
async def test_an_agent_of_today_serves_a_stream_to_a_replica_before_lanes(
    site: Site, tape: Tape
) -> None:
    async with replica_of(tape, site) as replica:
        agent = site.agent(tape.node, addresses=[replica.address])
        # The recorded grant was valid when it was recorded.
        agent.sessions._checker = GrantChecker(tape.node, ManualClock(tape.time), tape.grant_keys)
        await asyncio.wait_for(replica.carried.wait(), 60)
    opening, *frames = replica.received
    assert opening.open.ticket in {
        pb.LinkDown.FromString(each).ticket.id for each in tape.of("Link", "server")
    }
    echoed = [each.body[_HEAD_BYTES:] for each in frames if each.body[0] in _MESSAGES]
    assert echoed == [*SENT, b""]
