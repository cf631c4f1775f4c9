"""One open stream a node and attempt, shared by all viewers of this server.

What the node pushes is kept in a ring a stream, so that many viewers cost the node one reading. A
viewer that has fallen out of the ring has it fetched from the node's spool; what is not there any
more is in the store. A lost connection is taken up again; viewers see it as a change.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import msgspec

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, NotFound, Unavailable
from lattice.base.text import inert
from lattice.domain.logs import (
    LATEST_MS,
    BadSource,
    Gap,
    GapCause,
    LogKind,
    LogSource,
    Piece,
    Position,
)
from lattice.domain.nodejobs import match_attempt
from lattice.domain.stream import (
    Carrier,
    CarrierLost,
    Lane,
    NodeStreams,
    StreamKind,
    StreamQuestion,
    digest_of,
)
from lattice.features.logs.service.fedstream import FedStream
from lattice.features.logs.service.naming import AttemptName
from lattice.wire.conduit import Conduit, ConduitClosed
from lattice.wire.v1 import logs_pb2 as pb

_log = logging.getLogger(__name__)

_PATIENCE_S = 0.25
_NO_PATIENCE_S = 10.0
"""Who does not take half of the ring in a quarter of a second is not waited for again so soon."""
_IDLE_S = 20.0
_FETCH_S = 15.0
_MOST_OPENING = 32
"""All nodes of a large job at once would make each other late, and try again all at once."""
_MOST_GAPS = 1000
_LONGEST_REASON = 300
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
StreamKey = tuple[LogKind, LogSource]
Whose = Callable[[str, int, float], Awaitable[AttemptName]]
"""The attempt of a job that began on a node at a moment, as `Naming.of`."""


class Gone(Exception):
    """The node does not have it any more; the store has."""


class NodeFeed:
    """The output of one attempt on one node, live."""

    def __init__(
        self,
        name: AttemptName,
        node: str,
        nodes: NodeStreams,
        signer: GrantSigner,
        clock: Clock,
        whose: Whose,
        turn: asyncio.Semaphore | None = None,
    ) -> None:
        """`whose` tells attempts apart; `turn` is taken while a way to the node is sought."""
        self.node = node
        self._whose = whose
        self._before: float | None = None
        """When a life of the job began there that is another attempt's."""
        self._turn = turn or asyncio.Semaphore(1)
        self.streams: dict[StreamKey, FedStream] = {}
        self.gaps: dict[StreamKey, tuple[Gap, ...]] = {}
        self.over = False
        self.trouble = ""
        """Why the node can't be reached just now; empty if it can."""
        self.no_stream = ""
        """Why the node has no stream of the job, in its own words; empty if it gave no reason."""
        self.lost_at: float | None = None
        self.clock_ahead_s = 0
        """By how much its clock is ahead, where that is worth a word."""
        self.told = asyncio.Event()
        """Set once the node has said what it has, or that it can't be asked."""
        self._name = name
        self._nodes = nodes
        self._signer = signer
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._conduit: Conduit | None = None
        self._questions: dict[int, asyncio.Future[pb.FeedText]] = {}
        self._number = 0

    @contextmanager
    def telling(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call this at every change, as long as the context lasts."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def _note_change(self) -> None:
        for each in self._listeners:
            each()

    async def fetch(self, key: StreamKey, offset: int) -> list[Piece]:
        """From the node's spool. Raises `Gone` and `Unavailable`."""
        conduit = self._conduit
        if conduit is None:
            raise Unavailable(self.trouble or f"Node {self.node} is not reached yet.")
        self._number += 1
        number = self._number
        answer: asyncio.Future[pb.FeedText] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        ask = pb.FeedAsk(id=number, kind=key[0].value, source=str(key[1]), offset=offset)
        try:
            async with asyncio.timeout(_FETCH_S):
                await conduit.send(ask.SerializeToString())
                text = await answer
        except (TimeoutError, ConduitClosed):
            raise Unavailable(f"Node {self.node} does not answer.") from None
        finally:
            self._questions.pop(number, None)
        try:
            self._note_gaps(key, text.gaps)
            pieces = [_piece(each) for each in text.pieces]
        except CarrierLost as error:
            raise Unavailable(f"Node {self.node} can't be understood: {error}.") from None
        if text.gone:
            raise Gone
        return pieces

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            conduit = Conduit()
            session = secrets.token_hex(16)
            reading = asyncio.create_task(self._read(conduit), name=f"feed {self.node}")
            self._conduit = conduit
            try:
                while not conduit.over and not reading.done():
                    try:
                        async with self._opened(session, resume=conduit.begun) as carrier:
                            self._reached()
                            failures = 0
                            await conduit.carry(carrier)
                    except CarrierLost:
                        self._lost("the connection was lost")
                    await asyncio.sleep(_PAUSES_S[0])
                if reading.done():
                    reading.result()
            except (LatticeError, ConduitClosed) as error:
                self._lost(getattr(error, "message", "the session is over"))
            except Exception:  # noqa: BLE001 - a node's nonsense must not end the feed
                _log.exception("feed of %s: not foreseen", self.node)
                self._lost("what the node said can't be read")
                failures = len(_PAUSES_S) - 1
            finally:
                self._conduit = None
                conduit.close()
                self._leave_unanswered()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1

    @asynccontextmanager
    async def _opened(self, session: str, *, resume: bool) -> AsyncIterator[Carrier]:
        async with AsyncExitStack() as stack:
            async with self._turn:
                question = self._question(session, resume=resume)
                carrier = await stack.enter_async_context(self._nodes.open(question))
            yield carrier

    def _reached(self) -> None:
        if self.trouble:
            self.trouble, self.lost_at = "", None
            self._note_change()

    def _lost(self, why: str) -> None:
        if not self.trouble:
            self.lost_at = self._clock.monotonic()
        self.trouble = why
        self.told.set()
        self._leave_unanswered()
        self._note_change()

    def _leave_unanswered(self) -> None:
        for each in self._questions.values():
            if not each.done():
                each.set_exception(ConduitClosed())

    async def _read(self, conduit: Conduit) -> None:
        try:
            while (message := await conduit.receive()) is not None:
                tell = pb.FeedTell.FromString(message)
                if tell.WhichOneof("tell") == "began" and not await self._is_own(tell.began):
                    # What the node says now is not this attempt's; asked again, it says the rest.
                    self._before = tell.began
                    conduit.close()
                    return
                await self._let_read(self._take(tell))
        except ConduitClosed:
            return
        except Exception:
            # Pings alone would keep the connection, and viewers would wait for ever.
            conduit.close()
            raise

    async def _is_own(self, began: float) -> bool:
        """Of the attempt that viewers look at. The number of a job alone does not say so."""
        try:
            name = await self._whose(self.node, self._name.allocation.job_id, began)
        except NotFound:
            return False
        except Unavailable:
            # While Slurm is silent no attempt begins, and this one was known.
            return match_attempt((self._name.attempt,), began) is not None
        return name.is_same_run(self._name)

    async def _let_read(self, stream: FedStream | None) -> None:
        """A viewer who keeps up is waited for a little, so that it need not be fetched again.

        The node does not wait with it: it remembers places and reads its spool.
        """
        if stream is None or not stream.crowded:
            return
        if self._clock.monotonic() < stream.no_patience_until:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while stream.crowded:
                    stream.moved.clear()
                    await stream.moved.wait()
        except TimeoutError:
            stream.no_patience_until = self._clock.monotonic() + _NO_PATIENCE_S

    def _take(self, tell: pb.FeedTell) -> FedStream | None:
        """The stream that has grown, if one has."""
        stream = None
        which = tell.WhichOneof("tell")
        if which == "streams":
            self._take_streams(tell.streams)
        elif which == "pushed":
            stream = self.streams.setdefault(_key(tell.pushed), FedStream())
            for each in tell.pushed.pieces:
                stream.keep(_piece(each))
        elif which == "fetched":
            waiting = self._questions.get(tell.fetched.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(tell.fetched)
        self._note_change()
        return stream

    def _take_streams(self, told: pb.FeedStreams) -> None:
        for each in told.streams:
            stream = self.streams.setdefault(_key(each), FedStream())
            stream.told_end = max(stream.end, Position(each.offset, each.line))
            stream.stored_offset = each.stored
            stream.path, stream.labelled = each.path[:4096], each.labelled
            stream.trouble = each.trouble[:200]
            self._note_gaps(_key(each), each.gaps)
        self.over = told.over
        self.no_stream = inert(told.trouble[:_LONGEST_REASON])
        self.clock_ahead_s = told.clock_ahead_s
        self.told.set()

    def _note_gaps(self, key: StreamKey, told: Iterable[pb.FeedGap]) -> None:
        """Those that were told before stay: a node tells of the newest only."""
        known = {(each.at, each.cause, each.lost_bytes): each for each in self.gaps.get(key, ())}
        for gap in map(_gap, told):
            known[gap.at, gap.cause, gap.lost_bytes] = gap
        if known:
            self.gaps[key] = tuple(known.values())[-_MOST_GAPS:]

    def _question(self, session: str, *, resume: bool) -> StreamQuestion:
        attempt = self._name.attempt
        asked = {
            "job_id": self._name.allocation.job_id,
            "started": attempt.started.timestamp() if attempt.started else 0.0,
            "ended": attempt.ended.timestamp() if attempt.ended else None,
        }
        # Left out where it says nothing: agents of the release before know no such word.
        opening = msgspec.json.encode(asked | ({"before": self._before} if self._before else {}))
        kind = StreamKind.LOGS
        grant = self._signer.issue(
            kind.act,
            self.node,
            subject="server",
            job_id=self._name.allocation.job_id,
            digest=digest_of(session, kind, opening),
        )
        return StreamQuestion(
            node=self.node,
            kind=kind,
            session=session,
            opening=opening,
            grant=grant,
            resume=resume,
            lane=Lane.BULK,
        )


@dataclass(eq=False, slots=True)
class _Shared:
    feed: NodeFeed
    task: asyncio.Task[None]
    users: int = 0
    closing: asyncio.TimerHandle | None = None


class Feeds:
    """Every feed that somebody looks at, or did a moment ago."""

    def __init__(self, nodes: NodeStreams, signer: GrantSigner, clock: Clock, whose: Whose) -> None:
        self._whose = whose
        self._nodes = nodes
        self._signer = signer
        self._clock = clock
        self._shared: dict[tuple[str, str], _Shared] = {}
        self._turns = asyncio.Semaphore(_MOST_OPENING)

    @property
    def open(self) -> int:
        return len(self._shared)

    @asynccontextmanager
    async def of(self, name: AttemptName, node: str) -> AsyncIterator[NodeFeed]:
        """The feed of one node; closed some time after the last viewer has left."""
        key = (name.prefix, node)
        shared = self._shared.get(key)
        if shared is None:
            feed = NodeFeed(
                name, node, self._nodes, self._signer, self._clock, self._whose, self._turns
            )
            shared = _Shared(feed, asyncio.create_task(feed.run(), name=f"feed {node}"))
            self._shared[key] = shared
        if shared.closing:
            shared.closing.cancel()
            shared.closing = None
        shared.users += 1
        try:
            yield shared.feed
        finally:
            shared.users -= 1
            if not shared.users:
                loop = asyncio.get_running_loop()
                shared.closing = loop.call_later(_IDLE_S, self._drop, key, shared)

    def _drop(self, key: tuple[str, str], shared: _Shared) -> None:
        if self._shared.get(key) is shared:
            del self._shared[key]
        shared.task.cancel()

    async def aclose(self) -> None:
        tasks = [each.task for each in self._shared.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(told: pb.FeedText | pb.FeedStream) -> StreamKey:
    try:
        return LogKind(told.kind), LogSource.parse(told.source)
    except (BadSource, ValueError):
        raise CarrierLost("the node named no stream") from None


def _piece(told: pb.FeedPiece) -> Piece:
    return Piece(Position(told.offset, told.line), _time_ms(told), told.late, told.text)


def _gap(told: pb.FeedGap) -> Gap:
    lost = told.lost_bytes if told.HasField("lost_bytes") else None
    try:
        cause = GapCause(told.cause)
    except ValueError:
        raise CarrierLost("the node named no cause of a gap") from None
    return Gap(Position(told.offset, told.line), cause, lost, _time_ms(told))


def _time_ms(told: pb.FeedPiece | pb.FeedGap) -> int:
    """Whatever is kept is shown to people later, with its date."""
    if not 0 <= told.time_ms <= LATEST_MS:
        raise CarrierLost("the node named no time")
    return told.time_ms
