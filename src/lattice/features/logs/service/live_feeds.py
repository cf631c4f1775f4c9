"""One open node stream for each node and attempt, shared by all viewers of this server.

A ring buffer for each stream keeps what the node pushes, so many viewers cost the node one read.
For a viewer that falls behind the ring, text is fetched from the node's spool, or else from the
store. A lost connection is reopened; viewers see that as a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.text import inert
from lattice.domain.attempts import Whose
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
from lattice.domain.stream import Lane, NodeStreams, StreamKind, StreamQuestion
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.log_keys import AttemptName
from lattice.observe.node_questions import NoAnswer, is_own_run, started_s, stream_question
from lattice.observe.node_stream import NodeStream, SharedStreams
from lattice.wire.conduit import Conduit, ConduitClosed
from lattice.wire.v1 import logs_pb2 as pb

_PATIENCE_S = 0.25
_NO_PATIENCE_S = 10.0
"""A viewer that reads less than half of the ring in 0.25 s is not waited for during this time."""
_IDLE_S = 20.0
_FETCH_S = 15.0
_MOST_GAPS = 1000
_LONGEST_REASON = 300
StreamKey = tuple[LogKind, LogSource]


class Gone(Exception):
    """The node does not have the text any more; the store has."""


class NodeFeed(NodeStream):
    """The live output of one attempt on one node."""

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
        """`whose` assigns runs to attempts; `turn` is held while a connection is opened."""
        super().__init__(node, nodes, turn or asyncio.Semaphore(1))
        self._whose = whose
        self._before: float | None = None
        """The start of a run on that node that belongs to another attempt."""
        self.streams: dict[StreamKey, FedStream] = {}
        self.gaps: dict[StreamKey, tuple[Gap, ...]] = {}
        self.over = False
        self.trouble = ""
        """Why the node can't be reached now; empty if it can."""
        self.no_stream = ""
        """Why the node has no stream of the job; empty if it gave no reason."""
        self.lost_at: float | None = None
        self.clock_ahead_s = 0
        """How far its clock is ahead, in seconds; 0 if that is small."""
        self.told = asyncio.Event()
        """Set once the node has reported its streams, or can't be reached."""
        self._name = name
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
        """Text from the node's spool. Raises `Gone` and `Unavailable`."""
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
        except NoAnswer as error:
            raise Unavailable(f"Node {self.node} can't be understood: {error}.") from None
        if text.gone:
            raise Gone
        return pieces

    def begin(self, conduit: Conduit) -> None:
        """Send requests to this session from now on."""
        self._conduit = conduit

    def end(self) -> None:
        """Fail all pending requests."""
        self._conduit = None
        self._leave_unanswered()

    def heard(self) -> None:
        """The node is connected again."""
        if self.trouble:
            self.trouble, self.lost_at = "", None
            self._note_change()

    def lost(self, why: str) -> None:
        """Note the loss, and notify viewers."""
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

    async def read(self, conduit: Conduit) -> None:
        """Read what the node pushes, as long as it belongs to this attempt."""
        while (message := await conduit.receive()) is not None:
            tell = pb.FeedTell.FromString(message)
            if tell.WhichOneof("tell") == "began" and not await self._is_own(tell.began):
                # The node now reports another attempt; the next request excludes it.
                self._before = tell.began
                conduit.close()
                return
            await self._let_read(self._take(tell))

    async def _is_own(self, began: float) -> bool:
        return await is_own_run(self._whose, self._name, self.node, began)

    async def _let_read(self, stream: FedStream | None) -> None:
        """Wait a little for a viewer that keeps up, so that its text need not be fetched again.

        The node does not wait meanwhile: it keeps positions and reads its spool.
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
        """Process a message; returns the stream that has grown, if any."""
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
        """Keep earlier gaps too: a node reports only the newest."""
        known = {(each.at, each.cause, each.lost_bytes): each for each in self.gaps.get(key, ())}
        for gap in map(_gap, told):
            known[gap.at, gap.cause, gap.lost_bytes] = gap
        if known:
            self.gaps[key] = tuple(known.values())[-_MOST_GAPS:]

    def question(self, session: str, *, resume: bool) -> StreamQuestion:
        """The request for what the node has of this attempt, and for what follows."""
        attempt, job_id = self._name.attempt, self._name.allocation.job_id
        asked = {
            "job_id": job_id,
            "started": started_s(self._name),
            "ended": attempt.ended.timestamp() if attempt.ended else None,
        }
        # Only if set: agents of the previous release reject the field.
        opening = msgspec.json.encode(asked | ({"before": self._before} if self._before else {}))
        return stream_question(
            self._signer,
            StreamKind.LOGS,
            self.node,
            job_id,
            opening,
            session=session,
            resume=resume,
            lane=Lane.BULK,
        )


class Feeds:
    """Every feed with a viewer, now or a moment ago."""

    def __init__(self, nodes: NodeStreams, signer: GrantSigner, clock: Clock, whose: Whose) -> None:
        self._whose = whose
        self._nodes = nodes
        self._signer = signer
        self._clock = clock
        self._streams: SharedStreams[tuple[str, str], NodeFeed] = SharedStreams(_IDLE_S)
        self.aclose = self._streams.aclose

    @property
    def open(self) -> int:
        """How many there are."""
        return self._streams.open

    def of(self, name: AttemptName, node: str) -> AbstractContextManager[NodeFeed]:
        """The feed of one node; closed some time after the last viewer has left."""

        def make() -> NodeFeed:
            turns = self._streams.turns
            return NodeFeed(name, node, self._nodes, self._signer, self._clock, self._whose, turns)

        return self._streams.used((name.prefix, node), make)


def _key(told: pb.FeedText | pb.FeedStream) -> StreamKey:
    try:
        return LogKind(told.kind), LogSource.parse(told.source)
    except (BadSource, ValueError):
        raise NoAnswer("it names no stream") from None


def _piece(told: pb.FeedPiece) -> Piece:
    return Piece(Position(told.offset, told.line), _time_ms(told), told.late, told.text)


def _gap(told: pb.FeedGap) -> Gap:
    lost = told.lost_bytes if told.HasField("lost_bytes") else None
    try:
        cause = GapCause(told.cause)
    except ValueError:
        raise NoAnswer("it names no cause of a gap") from None
    return Gap(Position(told.offset, told.line), cause, lost, _time_ms(told))


def _time_ms(told: pb.FeedPiece | pb.FeedGap) -> int:
    """Checked, because it is shown as a date later."""
    if not 0 <= told.time_ms <= LATEST_MS:
        raise NoAnswer("it names no time")
    return told.time_ms
