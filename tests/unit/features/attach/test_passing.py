"""The agent's end: a granted ticket becomes a relay to the holder, and nothing is kept of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lattice.access.actor import Actor
from lattice.access.grants import GrantChecker, GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.terminals import HelperTerminals, PacketCarrier
from lattice.base.clock import SystemClock
from lattice.base.errors import PermissionRefused, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.privileged import Answer, Enter, Outcome, Rejoin, read_request
from lattice.domain.stream import CarrierLost, StreamKind, StreamQuestion
from lattice.domain.terminal import Output, Stdin, read_message, write_message
from lattice.features.attach.model import Start
from lattice.features.attach.node.terminals import TerminalPassing
from lattice.features.attach.service.questions import HelperQuestions
from lattice.features.link.node.sessions import NodeSessions
from lattice.wire.conduit import Conduit
from lattice.wire.v1 import link_pb2 as pb
from tests.eventually import eventually_async
from tests.fakes.cluster import allocation
from tests.fakes.held_terminals import CutCarrier, joined
from tests.fakes.helper_door import helper_at

ALICE = Actor(sub="alice-1", user="alice")
JOB = allocation(1, "alice", "research")
SESSION = "a" * 32


class _Dialled(CutCarrier):
    """The agent's side of a stream that it dialled."""

    def __init__(self, carrier: CutCarrier, openings: asyncio.Queue[pb.StreamOpening]) -> None:
        super().__init__(carrier._inwards, carrier._outwards)
        self._openings = openings

    async def open_with(self, opening: pb.StreamOpening) -> None:
        self._openings.put_nowait(opening)

    async def receive_raw(self) -> bytes:
        return await self.receive()


class Replica:
    """A server that agents dial; the port `Dialling` of the agent."""

    def __init__(self) -> None:
        self.openings: asyncio.Queue[pb.StreamOpening] = asyncio.Queue()
        self.carriers: asyncio.Queue[CutCarrier] = asyncio.Queue()

    @asynccontextmanager
    async def carrier(self, ticket: pb.Ticket) -> AsyncIterator[_Dialled]:  # noqa: ARG002
        ours, theirs = joined()
        self.carriers.put_nowait(ours)
        try:
            yield _Dialled(theirs, self.openings)
        finally:
            theirs.cut()


@dataclass
class Node:
    """Holders behind a helper, and the agent's sessions before it."""

    replica: Replica
    sessions: NodeSessions
    asking: HelperQuestions
    holders: dict[str, Conduit] = field(default_factory=dict)
    carrying: list[asyncio.Task[None]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    refusal: Answer | None = None
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def reply(self, request: bytes) -> tuple[Answer, Sequence[int]]:
        self.requests.append(request)
        if self.refusal is not None:
            return self.refusal, ()
        _, _, question = read_request(request)
        assert isinstance(question, Enter | Rejoin)
        if isinstance(question, Enter):
            self.holders[question.session] = Conduit()
        conduit = self.holders.get(question.session)
        if conduit is None:
            return Answer(outcome=Outcome.FAILED, message="There is no such session."), ()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.carrying.append(asyncio.create_task(_hold(conduit, PacketCarrier(ours))))
        return Answer(outcome=Outcome.DONE), [theirs.detach()]

    def ask(self, question: Enter | Rejoin) -> StreamQuestion:
        return self.asking.of_node(ALICE, JOB, "n1", question)

    def hand(self, asked: StreamQuestion, number: str = "") -> None:
        self.sessions.take(
            pb.Ticket(
                id=number or str(next(self.numbers)),
                dial="r1:1",
                kind=asked.kind.value,
                session=asked.session,
                resume=asked.resume,
                grant=asked.grant,
                opening=asked.opening,
            )
        )


async def _hold(conduit: Conduit, carrier: PacketCarrier) -> None:
    try:
        with suppress(CarrierLost):
            await conduit.carry(carrier)
    finally:
        carrier.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    clock = SystemClock()
    signer = GrantSigner(SigningKey.generate(), clock)
    replica = Replica()
    terminals = HelperTerminals(HelperChannel(tmp_path / "h", timeout_s=60))
    sessions = NodeSessions(
        replica,  # type: ignore[arg-type]
        GrantChecker("n1", clock, signer.public_keys),
        {},
        {StreamKind.ATTACH: TerminalPassing(terminals)},
    )
    made = Node(replica, sessions, HelperQuestions(signer))
    async with helper_at(tmp_path / "h", made.reply):
        yield made
        await sessions.aclose()
    for task in made.carrying:
        task.cancel()
    await asyncio.gather(*made.carrying, return_exceptions=True)


def _enter(session: str = SESSION) -> Enter:
    return Enter(session, (), "xterm", 24, 80, "", False)


async def _spoken(node: Node, client: Conduit) -> asyncio.Task[None]:
    return asyncio.create_task(_carried(client, await node.replica.carriers.get()))


async def _carried(client: Conduit, carrier: CutCarrier) -> None:
    with suppress(CarrierLost):
        await client.carry(carrier)


@pytest.mark.spec("ATTACH-1")
async def test_frames_pass_between_a_client_and_the_holder_unread(node: Node) -> None:
    asked = node.ask(_enter())
    node.hand(asked)
    client = Conduit()
    carrying = await _spoken(node, client)
    assert (await node.replica.openings.get()).ticket == "1"
    await client.send(write_message(Stdin(b"\xff\x00" * 16_000)))
    holder = node.holders[SESSION]
    typed = await holder.receive()
    assert typed == write_message(Stdin(b"\xff\x00" * 16_000))
    await holder.send(write_message(Output(b"x" * 60_000)))
    shown = await client.receive()
    assert shown is not None
    assert read_message(shown) == Output(b"x" * 60_000)
    assert node.requests == [asked.opening], "the helper gets the server's words as they are"
    assert node.sessions.open == 1
    carrying.cancel()


@pytest.mark.spec("ATTACH-4")
async def test_a_session_goes_on_at_an_agent_that_never_saw_it(node: Node) -> None:
    node.holders[SESSION] = Conduit()
    node.hand(node.ask(Rejoin(SESSION)))
    client = Conduit()
    carrying = await _spoken(node, client)
    await node.holders[SESSION].send(b"still here")
    assert await client.receive() == b"still here"
    carrying.cancel()


@pytest.mark.spec("ATTACH-4")
async def test_a_newer_ticket_takes_the_older_relays_place(node: Node) -> None:
    node.hand(node.ask(_enter()), "1")
    client = Conduit()
    first = await _spoken(node, client)
    await client.send(b"1")
    assert await node.holders[SESSION].receive() == b"1"
    node.hand(node.ask(Rejoin(SESSION)), "2")
    await first
    second = await _spoken(node, client)
    await client.send(b"2")
    assert await node.holders[SESSION].receive() == b"2"
    assert node.sessions.open == 1
    second.cancel()


async def test_the_relay_ends_with_the_holder_and_with_the_server(node: Node) -> None:
    for session, end in (("a" * 32, "holder"), ("b" * 32, "server")):
        node.hand(node.ask(_enter(session)))
        client = Conduit()
        ours = await node.replica.carriers.get()
        carrying = asyncio.create_task(_carried(client, ours))
        await client.send(b"1")
        assert await node.holders[session].receive() == b"1"
        if end == "holder":
            node.carrying[-1].cancel()
        else:
            ours.cut()
        await carrying
        await asyncio.gather(node.carrying[-1], return_exceptions=True)
        await eventually_async(lambda: not node.sessions.open)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.FAILED, "unavailable"),
        (Outcome.BUSY, "unavailable"),
        (Outcome.NOT_OFFERED, "unavailable"),
        (Outcome.REFUSED, "permission_refused"),
        (Outcome.ACCOUNT_REFUSED, "permission_refused"),
        (Outcome.BAD_QUESTION, "usage"),
        (Outcome.BROKEN, "internal"),
    ],
)
async def test_what_the_helper_refuses_is_told_in_its_words(
    node: Node, outcome: Outcome, code: str
) -> None:
    node.refusal = Answer(outcome=outcome, message="The job has\nno process of yours here")
    node.hand(node.ask(_enter()))
    told = await node.replica.openings.get()
    assert (told.ticket, told.refused_code) == ("1", code)
    assert "no process of yours here" in told.refused_message
    assert "\n" not in told.refused_message


async def test_a_session_that_is_gone_is_not_found(node: Node) -> None:
    node.hand(node.ask(Rejoin(SESSION)))
    told = await node.replica.openings.get()
    assert (told.refused_code, told.refused_message) == ("not_found", "There is no such session.")


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("replica-certificate")
async def test_nothing_reaches_the_helper_without_a_grant_for_it(node: Node) -> None:
    """Attack 1: a server's certificate alone opens nothing, and no grant opens twice."""
    asked = node.ask(_enter())
    stranger = HelperQuestions(GrantSigner(SigningKey.generate(), SystemClock()))
    forged = stranger.of_node(ALICE, JOB, "n1", _enter())
    elsewhere = node.asking.of_node(ALICE, JOB, "n2", _enter())
    other = node.ask(_enter("b" * 32))
    swapped = StreamQuestion(
        node="n1",
        kind=asked.kind,
        session=asked.session,
        opening=other.opening,
        grant=asked.grant,
    )
    bare = StreamQuestion(
        node="n1", kind=asked.kind, session=asked.session, opening=asked.opening, grant=""
    )
    for question in (forged, elsewhere, swapped, bare):
        node.hand(question)
        told = await node.replica.openings.get()
        assert told.refused_code == "permission_refused"
    assert not node.requests
    node.hand(asked)
    carrying = await _spoken(node, Conduit())
    while (await node.replica.openings.get()).refused_code:
        pass
    node.hand(asked)
    assert (await node.replica.openings.get()).refused_code == "permission_refused"
    assert len(node.requests) == 1
    carrying.cancel()


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize(
    ("session", "opening", "resume"),
    [
        (SESSION, b"{}", False),
        (SESSION, b"", False),
        ("b" * 32, None, False),
        (SESSION, None, True),
    ],
)
async def test_a_question_of_another_stream_is_not_passed_on(
    node: Node, session: str, opening: bytes | None, resume: bool
) -> None:
    passing = TerminalPassing(HelperTerminals(HelperChannel(Path("/nowhere"))))
    written = node.ask(_enter()).opening if opening is None else opening
    with pytest.raises(PermissionRefused):
        passing(session, written, resume=resume)


async def test_a_helper_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    terminals = HelperTerminals(HelperChannel(tmp_path / "none"))
    with pytest.raises(Unavailable, match="does not answer"):
        async with terminals.open(b"{}", resume=False):
            pass


async def test_an_answer_without_a_terminal_leaks_nothing(tmp_path: Path) -> None:
    def reply(_: bytes) -> tuple[Answer, Sequence[int]]:
        return Answer(outcome=Outcome.DONE), [os.dup(0), os.dup(0)]

    async with helper_at(tmp_path / "h", reply):
        terminals = HelperTerminals(HelperChannel(tmp_path / "h"))
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(Exception, match="no terminal"):
            async with terminals.open(b"{}", resume=False):
                pass
        assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_packets_keep_their_order_whoever_is_slow() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, two = PacketCarrier(ours), PacketCarrier(theirs)
    sent = [bytes((n % 256,)) * 3000 for n in range(500)]

    async def send() -> None:
        for each in sent:
            await one.send(each)

    sending = asyncio.create_task(send())
    await asyncio.sleep(0)
    assert [await two.receive() for _ in sent] == sent
    await sending
    waiting = asyncio.create_task(two.receive())
    await asyncio.sleep(0)
    one.close()
    with pytest.raises(CarrierLost):
        await waiting
    two.close()
    for after in (two.receive(), two.send(b"x"), one.send(b"x")):
        with pytest.raises(CarrierLost):
            await after


async def test_whoever_waits_is_told_when_it_is_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one = PacketCarrier(ours)
    reading = asyncio.create_task(one.receive())
    await asyncio.sleep(0)
    one.close()
    with pytest.raises(CarrierLost):
        await reading
    theirs.close()


def test_what_cannot_be_run_is_not_asked() -> None:
    asking = HelperQuestions(GrantSigner(SigningKey.generate(), SystemClock()))
    for start in (
        Start(session=SESSION, rows=0),
        Start(session=SESSION, command=("",)),
        Start(session=SESSION, terminal="a b"),
        Start(session=SESSION, tools="relative"),
    ):
        with pytest.raises(Exception, match="can't be run"):
            asking.enter(start)
