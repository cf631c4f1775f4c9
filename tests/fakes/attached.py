"""A server's part of attach in memory, and a client at the other end of its line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.limits import DEFAULTS, LimitTable
from lattice.access.output import OutputAccess
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.errors import LatticeError
from lattice.domain.audit import NoTrail
from lattice.domain.scheduler import Scheduler
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.stream import NodeStreams
from lattice.domain.terminal import Stdin, TerminalMessage, read_message, write_message
from lattice.features.attach.model import (
    Opened,
    ServerWord,
    Start,
    read_server_word,
    write_word,
)
from lattice.features.attach.service.questions import HelperQuestions
from lattice.features.attach.service.recorded import TerminalRecording
from lattice.features.attach.service.recordings import Recordings
from lattice.features.attach.service.records import AttachListing, SessionRecords
from lattice.features.attach.service.registry import SessionRegistry
from lattice.features.attach.service.replay import Replay
from lattice.features.attach.service.session import AttachService
from lattice.features.attach.service.tickets import AttachTickets
from lattice.features.attach.wiring import bindings, terminal
from lattice.foundation.wiring import Wiring
from lattice.server.cluster.limits import Limits, NoOtherReplica, Rates
from lattice.server.cluster.slots import PREFIX, Slots
from lattice.wire.conduit import Conduit
from lattice.wire.lines import LineClosed
from lattice.wire.websocket import SocketCaller
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.required_trail import RequiredTrail

ALICE = Actor(sub="alice-1", user="alice")
BOB = Actor(sub="bob-1", user="bob")


class Acts:
    """A journal that is only a list."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, str, str, str]] = []

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.acts.append((act, target, sub, detail))


class AttachReplica:
    """One server on a state in memory."""

    def __init__(
        self,
        name: str,
        store: InMemoryStateStore,
        scheduler: Scheduler,
        nodes: NodeStreams,
        signer: object,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        finder: AllocationFinder | None = None,
        acts: SensitiveActs | None = None,
        recording: TerminalRecording | None = None,
        on_recorded_end: Callable[[], None] = lambda: None,
    ) -> None:
        clock = store.clock
        table = LimitTable(dict(DEFAULTS))
        view = InMemoryStateView(store, PREFIX)
        self.store = store
        self.slots = Slots(store, view, table, clock, replica=name, lease=lambda: 0)
        rates = Rates(table, clock, replica=name, replicas=lambda: (name,), others=NoOtherReplica())
        self.records = SessionRecords(store, clock, name)
        self.journal = Acts()
        self.keeping = SessionRegistry(
            Limits(self.slots, rates, lambda _: None),
            self.records,
            clock,
            self.journal,
            acts,
            on_recorded_end=on_recorded_end,
            sleep=sleep,
        )
        finder = finder or AllocationFinder(scheduler, clock)
        self.service = AttachService(
            scheduler,
            finder,
            nodes,
            HelperQuestions(signer),  # type: ignore[arg-type]
            self.keeping,
            recording or TerminalRecording(SensitiveWork(), Recordings(store), clock),
            clock,
            name,
            sleep=sleep,
        )
        self.listing = AttachListing(finder, self.records)
        self.tickets = AttachTickets(finder, store, clock)
        self.replay = Replay(
            cast("OutputAccess", None), Recordings(store), NoTrail(), RequiredTrail()
        )

    def wiring(self, *origins: str) -> Wiring:
        """What it offers; pages of these origins may open terminals."""
        return Wiring(
            bindings=bindings(self.listing, self.tickets, self.replay),
            offer=terminal(self.service, self.tickets, frozenset(origins)),
        )


class MemoryLine:
    """The port `Line`, with the client's side of it beside."""

    def __init__(self) -> None:
        self._inwards: asyncio.Queue[bytes | str | LineClosed] = asyncio.Queue()
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.words: list[ServerWord] = []
        self.said = asyncio.Event()
        self.closed: int | None = None

    async def receive(self) -> bytes | str:
        message = await self._inwards.get()
        if isinstance(message, LineClosed):
            raise message
        return message

    async def send(self, frame: bytes) -> None:
        if self.closed is not None:
            raise LineClosed("closed")
        self._frames.put_nowait(frame)

    async def send_word(self, word: str) -> None:
        if self.closed is not None:
            raise LineClosed("closed")
        read = read_server_word(word)
        assert read is not None
        self.words.append(read)
        self.said.set()

    async def close(self, code: int, reason: str) -> None:  # noqa: ARG002 - the port's
        if self.closed is None:
            self.closed = code
            self._frames.put_nowait(None)

    # The client's side.

    def put(self, message: bytes | str) -> None:
        self._inwards.put_nowait(message)

    def hang_up(self, *, orderly: bool = False) -> None:
        if self.closed is None:
            self.closed = 1000 if orderly else 1006
        self._frames.put_nowait(None)
        self._inwards.put_nowait(LineClosed("gone", orderly=orderly))

    async def frame(self) -> bytes:
        frame = await self._frames.get()
        if frame is None:
            self._frames.put_nowait(None)
            raise LineClosed("closed")
        return frame


class _LineCarrier:
    def __init__(self, line: MemoryLine) -> None:
        self._line = line

    async def send(self, frame: bytes) -> None:
        self._line.put(frame)

    async def receive(self) -> bytes:
        return await self._line.frame()


class Client:
    """A person's end: one conduit, one connection after another."""

    def __init__(self, session: str = "a" * 32) -> None:
        self.session = session
        self.conduit = Conduit()
        self.line = MemoryLine()
        self._serving: asyncio.Task[LatticeError | None] | None = None
        self._carrying: asyncio.Task[None] | None = None

    def dial(
        self,
        replica: AttachReplica,
        name: str = "1",
        actor: Actor = ALICE,
        *,
        standing: SocketCaller[Actor] | None = None,
        start: Start | None = None,
    ) -> asyncio.Task[LatticeError | None]:
        """Begin, or go on at this server."""
        resume = self._serving is not None
        self.line = MemoryLine()
        start = start or Start(session=self.session, resume=resume, terminal="xterm")
        self.line.put(write_word(start))
        standing = standing or SocketCaller(actor, _nobody, "")
        self._serving = asyncio.create_task(replica.service.serve(standing, name, self.line))
        self._carrying = asyncio.create_task(self.conduit.carry(_LineCarrier(self.line)))
        return self._serving

    async def opened(self) -> Opened:
        """The server's first word."""
        await self.line.said.wait()
        first = self.line.words[0]
        assert isinstance(first, Opened), first
        return first

    async def served(self) -> LatticeError | None:
        """What became of the connection."""
        assert self._serving is not None
        result = (await asyncio.gather(self._serving, return_exceptions=True))[0]
        await self._drop()
        if isinstance(result, BaseException) and not isinstance(result, LineClosed | LatticeError):
            raise result
        return result if isinstance(result, LatticeError) else None

    async def type(self, text: bytes) -> None:
        await self.conduit.send(write_message(Stdin(text)))

    async def read(self) -> TerminalMessage:
        payload = await self.conduit.receive()
        assert payload is not None
        return read_message(payload)

    async def leave(self, *, orderly: bool = False) -> None:
        """The connection ends on this side."""
        self.line.hang_up(orderly=orderly)
        await self.served()

    async def aclose(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._drop()

    async def _drop(self) -> None:
        if self._carrying is not None:
            self._carrying.cancel()
            with suppress(BaseException):
                await self._carrying


async def _nobody(_: str) -> Actor:
    raise AssertionError("nobody asked for this")
