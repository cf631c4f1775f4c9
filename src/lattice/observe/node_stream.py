"""A lasting stream from a node: it reconnects after a failure, and all its readers share it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from lattice.base.errors import LatticeError
from lattice.domain.stream import Carrier, CarrierLost, NodeStreams, StreamQuestion
from lattice.observe.node_questions import UNREADABLE, NoAnswer
from lattice.observe.opening_turns import OpeningTurns
from lattice.wire.conduit import Conduit, ConduitClosed

_log = logging.getLogger(__name__)

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_WITHOUT_LINK_S = 30.0
"""How long a node without a link is not asked, once it was asked several times."""
_LINK_CHECK_S = 1.0


class NodeStream(ABC):
    """What one node sends for one attempt, over as many connections as it takes."""

    def __init__(self, node: str, nodes: NodeStreams, turns: OpeningTurns) -> None:
        """A connection to the node is opened in a turn."""
        self.node = node
        self._nodes = nodes
        self._turns = turns

    @abstractmethod
    def question(self, session: str, *, resume: bool) -> StreamQuestion:
        """The question to the node."""

    @abstractmethod
    async def read(self, conduit: Conduit) -> None:
        """Read until the node has no more. Raises `NoAnswer` if the data can't be used."""

    @abstractmethod
    def lost(self, why: str) -> None:
        """The node can't be reached or understood."""

    @abstractmethod
    def answered(self) -> None:
        """The node has answered on a new connection."""

    @abstractmethod
    def begin(self, conduit: Conduit) -> None:
        """A session begins."""

    def end(self) -> None:  # noqa: B027 - a stream may have nothing to end
        """The session is over."""

    def conduit(self) -> Conduit:
        """The server's end of a session."""
        return Conduit()

    def pause_s(self, failures: int) -> float:
        """How long to wait before the next session."""
        return _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]

    async def run(self) -> None:
        """Run until cancelled."""
        failures = 0
        while True:
            conduit, session = self.conduit(), secrets.token_hex(16)
            self.begin(conduit)
            reading = asyncio.create_task(self._read(conduit), name=f"read {self.node}")
            try:
                while not conduit.over and not reading.done():
                    try:
                        async with self._opened(session, resume=conduit.begun) as carrier:
                            await conduit.carry(carrier, self.answered)
                    except CarrierLost:
                        self.lost("the connection was lost")
                    failures = 0 if conduit.met else failures
                    await asyncio.sleep(_PAUSES_S[0])
                if reading.done():
                    reading.result()
            except LatticeError as error:
                self.lost(error.message.rstrip("."))
            except ConduitClosed:
                self.lost("the session is over")
            except NoAnswer as error:
                self.lost(str(error))
            except Exception:  # noqa: BLE001 - what a node sends must not end the stream
                _log.exception("stream of %s: not foreseen", self.node)
                self.lost(UNREADABLE)
                failures = len(_PAUSES_S) - 1
            finally:
                conduit.close()
                self.end()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await asyncio.sleep(self.pause_s(failures))
            failures += 1
            if failures >= len(_PAUSES_S):
                await self._wait_for_link()

    async def _wait_for_link(self) -> None:
        """Return once the node has a link, or after a while.

        Where thousands of nodes lost theirs, asking them all the time keeps the server busy.
        """
        for _ in range(round(_WITHOUT_LINK_S / _LINK_CHECK_S)):
            if self._nodes.linked_to(self.node):
                return
            await asyncio.sleep(_LINK_CHECK_S)

    @asynccontextmanager
    async def _opened(self, session: str, *, resume: bool) -> AsyncIterator[Carrier]:
        async with AsyncExitStack() as stack:
            async with self._turns.turn():
                question = self.question(session, resume=resume)
                carrier = await stack.enter_async_context(self._nodes.open(question))
            yield carrier

    async def _read(self, conduit: Conduit) -> None:
        try:
            await self.read(conduit)
        except ConduitClosed:
            return
        except Exception:
            # There is no reader any more. Pings alone would keep the connection for ever.
            conduit.close()
            raise


K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=NodeStream)


@dataclass(eq=False, slots=True)
class _Shared(Generic[S]):
    stream: S
    task: asyncio.Task[None]
    users: int = 0
    closing: asyncio.TimerHandle | None = None


class SharedStreams(Generic[K, S]):
    """Streams by key, each open while it is used and for some time after."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._shared: dict[K, _Shared[S]] = {}
        self.turns = OpeningTurns()

    @property
    def open(self) -> int:
        """The number of open streams."""
        return len(self._shared)

    def __contains__(self, key: K) -> bool:
        return key in self._shared

    @contextmanager
    def used(self, key: K, make: Callable[[], S]) -> Iterator[S]:
        """The stream of this key, made if there is none, while the context lasts."""
        stream = self.join(key, make)
        try:
            yield stream
        finally:
            self.leave(key, stream)

    def join(self, key: K, make: Callable[[], S]) -> S:
        """The stream of this key, made if there is none. The caller leaves it later."""
        shared = self._shared.get(key)
        if shared is None:
            stream = make()
            task = asyncio.create_task(stream.run(), name=f"stream {stream.node}")
            shared = self._shared[key] = _Shared(stream, task)
        if shared.closing:
            shared.closing.cancel()
            shared.closing = None
        shared.users += 1
        return shared.stream

    def leave(self, key: K, stream: S) -> None:
        """End one use of the stream; after the last it is closed, but not at once."""
        shared = self._shared.get(key)
        if shared is None or shared.stream is not stream:
            return
        shared.users -= 1
        if not shared.users:
            loop = asyncio.get_running_loop()
            shared.closing = loop.call_later(self._idle_s, self._drop, key, shared)

    def _drop(self, key: K, shared: _Shared[S]) -> None:
        if self._shared.get(key) is shared:
            del self._shared[key]
        shared.task.cancel()

    async def aclose(self) -> None:
        there = list(self._shared.values())
        self._shared.clear()
        for each in there:
            if each.closing:
                each.closing.cancel()
            each.task.cancel()
        await asyncio.gather(*(each.task for each in there), return_exceptions=True)
