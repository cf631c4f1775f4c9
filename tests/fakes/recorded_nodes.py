"""A node that records terminals: the agent's own recorder before holders in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.privileged import read_request
from lattice.domain.sealed import DataKey
from lattice.domain.stream import CarrierLost, StreamKind, StreamQuestion
from lattice.features.attach.node.leftovers import Leftovers
from lattice.features.attach.node.recorded import RecordedTerminals
from lattice.features.attach.recording_frames import has_order
from lattice.wire.carriers import relay
from lattice.wire.conduit import Conduit
from tests.fakes.held_terminals import CutCarrier, HeldTerminals, Holder, joined

KEY = DataKey(b"i" * 16, b"s" * 32)


class InMemoryKeys:
    """The ports of data keys, of a node and of a server."""

    def __init__(self) -> None:
        self.keys: dict[str, DataKey] = {}
        self.default: DataKey | None = KEY
        self.asked: list[tuple[str, int, float]] = []
        self.error: LatticeError | None = None

    async def key_for(self, allocation: str, job_id: int, started: float, /) -> DataKey | None:
        self.asked.append((allocation, job_id, started))
        if self.error is not None:
            raise self.error
        return self.keys.get(allocation, self.default)


class _Holders:
    """The helper of the node."""

    def __init__(self, nodes: RecordedNodes) -> None:
        self._nodes = nodes

    @asynccontextmanager
    async def open(self, request: bytes, *, resume: bool) -> AsyncIterator[CutCarrier]:
        _, _, question = read_request(request)
        holder = self._nodes.holder(request, question.session, resume=resume)  # type: ignore[union-attr]
        ours, theirs = joined()
        await holder.join(theirs)
        try:
            yield ours
        finally:
            ours.cut()


class RecordedNodes(HeldTerminals):
    """The port `NodeStreams` with a recorder behind it."""

    def __init__(self, clock: Clock, folder: Path, *linked: str) -> None:
        super().__init__(clock, *linked)
        self._clock = clock
        self.folder = folder
        self.keys = InMemoryKeys()
        self._relays: dict[str, asyncio.Task[None]] = {}
        self.agent = self._new_agent()

    def _new_agent(self) -> RecordedTerminals:
        return RecordedTerminals(_Holders(self), self.keys, self.folder, "n1", self._clock)

    async def kill_agent(self) -> None:
        """As SIGKILL: nothing more is written, and no connection is left. Another one begins."""
        for terminal in list(self.agent._open.values()):
            terminal._recording.cancel()
            if terminal._pump is not None:
                terminal._pump.cancel()
            await asyncio.gather(terminal._recording, return_exceptions=True)
        for task in self._relays.values():
            task.cancel()
        await asyncio.gather(*self._relays.values(), return_exceptions=True)
        self.agent = self._new_agent()

    def holder(self, request: bytes, session: str, *, resume: bool) -> Holder:
        return self._holder(
            StreamQuestion(
                node="n1",
                kind=StreamKind.ATTACH,
                session=session,
                opening=request,
                grant="",
                resume=resume,
            )
        )

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[CutCarrier]:
        if question.kind is StreamKind.RECORDINGS and question.node in self.linked:
            async with self._leftovers(question) as carrier:
                yield carrier
            return
        if not has_order(question.opening) or question.node not in self.linked:
            async with super().open(question) as carrier:
                yield carrier
            return
        older = self._relays.pop(question.session, None)
        if older is not None:
            older.cancel()
            await asyncio.gather(older, return_exceptions=True)
        ours, theirs = joined()
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._relays[question.session] = asyncio.create_task(
            self._relayed(question, theirs, connected)
        )
        await connected
        try:
            yield ours
        finally:
            ours.cut()

    async def _relayed(
        self, question: StreamQuestion, theirs: CutCarrier, connected: asyncio.Future[None]
    ) -> None:
        try:
            async with self.agent.connect(
                question.session, question.opening, resume=question.resume
            ) as near:
                connected.set_result(None)
                await relay(theirs, near)
                theirs.cut()
        except LatticeError as error:
            if connected.done():
                raise
            connected.set_exception(error)
        finally:
            theirs.cut()

    @asynccontextmanager
    async def _leftovers(self, question: StreamQuestion) -> AsyncIterator[CutCarrier]:
        conduit, (ours, theirs) = Conduit(), joined()
        serve = Leftovers(self.agent, self.folder)
        serving = asyncio.create_task(serve(conduit, question.opening))
        carrying = asyncio.create_task(conduit.carry(theirs))
        try:
            yield ours
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(serving), 5)
        finally:
            ours.cut()
            conduit.close()
            for task in (serving, carrying):
                task.cancel()
            with suppress(CarrierLost):
                await asyncio.gather(serving, carrying, return_exceptions=True)

    async def aclose(self) -> None:
        await self.agent.aclose()
        for task in self._relays.values():
            task.cancel()
        await asyncio.gather(*self._relays.values(), return_exceptions=True)
        await super().aclose()
