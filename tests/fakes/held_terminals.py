"""Terminals without nodes: holders in memory, reached as the port `NodeStreams` reaches them.

Grants are checked as an agent and a helper check them. A holder outlives its carriers; its shell
sends back what is typed, and ends with N at `exit N`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, NotFound, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import Enter, Rejoin, read_request
from lattice.domain.privileged import digest_of as question_digest
from lattice.domain.stream import CarrierLost, StreamQuestion, digest_of
from lattice.domain.terminal import (
    EndCause,
    Exit,
    Output,
    Started,
    Stdin,
    read_message,
    write_message,
)
from lattice.wire.conduit import Conduit, ConduitClosed
from lattice.wire.lane import LARGEST_FRAME_BYTES


class CutCarrier:
    """One side of a connection in memory, which can be cut. A large frame cuts it, as usual."""

    def __init__(
        self, inwards: asyncio.Queue[bytes | None], outwards: asyncio.Queue[bytes | None]
    ) -> None:
        self._inwards = inwards
        self._outwards = outwards
        self._lost = False

    async def send(self, frame: bytes) -> None:
        if self._lost:
            raise CarrierLost("cut")
        if len(frame) > LARGEST_FRAME_BYTES:
            self.cut()
            raise CarrierLost("a frame is too large")
        self._outwards.put_nowait(frame)

    async def receive(self) -> bytes:
        frame = await self._inwards.get() if not self._lost else None
        if frame is None:
            self._lost = True
            raise CarrierLost("cut")
        return frame

    def cut(self) -> None:
        self._lost = True
        self._inwards.put_nowait(None)
        self._outwards.put_nowait(None)


def joined() -> tuple[CutCarrier, CutCarrier]:
    """Both sides of one connection."""
    there: asyncio.Queue[bytes | None] = asyncio.Queue()
    back: asyncio.Queue[bytes | None] = asyncio.Queue()
    return CutCarrier(back, there), CutCarrier(there, back)


@dataclass(eq=False)
class Holder:
    """A terminal and its shell."""

    question: Enter
    grant: Grant
    conduit: Conduit = field(default_factory=Conduit)
    carrier: CutCarrier | None = None
    carrying: asyncio.Task[None] | None = None
    shell: asyncio.Task[None] | None = None

    async def run(self) -> None:
        started = Started(
            node="n1", user="alice", step="batch", pid=7, directory="/home", accounted=True
        )
        await self.conduit.send(write_message(started))
        with suppress(ConduitClosed):
            while (payload := await self.conduit.receive()) is not None:
                message = read_message(payload)
                if isinstance(message, Stdin) and message.text.startswith(b"exit "):
                    await self.end(Exit(cause=EndCause.EXITED, code=int(message.text[5:])))
                    return
                if isinstance(message, Stdin):
                    await self.conduit.send(write_message(Output(message.text)))

    async def end(self, how: Exit) -> None:
        await self.conduit.send(write_message(how), last=True)

    async def join(self, carrier: CutCarrier) -> None:
        if self.carrier is not None:
            self.carrier.cut()
        if self.carrying is not None:
            await asyncio.gather(self.carrying, return_exceptions=True)
        self.carrier = carrier
        self.carrying = asyncio.create_task(self._carry(carrier))

    async def _carry(self, carrier: CutCarrier) -> None:
        with suppress(CarrierLost):
            await self.conduit.carry(carrier)
        carrier.cut()


class HeldTerminals:
    """The port `NodeStreams`. `linked` are the nodes there is a way to."""

    def __init__(self, clock: Clock, *linked: str) -> None:
        key = SigningKey.generate()
        self.signer = GrantSigner(key, clock)
        self._agents = GrantChecker("n1", clock, self.signer.public_keys)
        self._helpers = GrantChecker("n1", clock, self.signer.public_keys)
        self.linked = set(linked)
        self.holders: dict[str, Holder] = {}
        self.asked: list[StreamQuestion] = []
        self.refusal: LatticeError | None = None

    def linked_to(self, node: str) -> str:
        return "r1" if node in self.linked else ""

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[CutCarrier]:
        self.asked.append(question)
        if question.node not in self.linked:
            raise Unavailable(f"There is no way to node {question.node} now.")
        if self.refusal is not None:
            raise self.refusal
        digest = digest_of(question.session, question.kind, question.opening)
        self._agents.check(question.grant, question.kind.act, digest=digest)
        holder = self._holder(question)
        ours, theirs = joined()
        await holder.join(theirs)
        try:
            yield ours
        finally:
            ours.cut()

    def _holder(self, question: StreamQuestion) -> Holder:
        grant, _, asked = read_request(question.opening)
        assert isinstance(asked, Enter | Rejoin)
        assert asked.session == question.session
        assert isinstance(asked, Rejoin) == question.resume
        granted = self._helpers.check(grant, Act.ATTACH, digest=question_digest(asked))
        if isinstance(asked, Rejoin):
            if asked.session not in self.holders:
                raise NotFound("Node n1 refused: no such terminal.")
            return self.holders[asked.session]
        holder = self.holders[asked.session] = Holder(asked, granted)
        holder.shell = asyncio.create_task(holder.run())
        return holder

    async def aclose(self) -> None:
        for holder in self.holders.values():
            holder.conduit.close()
            tasks = [each for each in (holder.shell, holder.carrying) if each]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
