"""One open node stream for each node and attempt, shared by all viewers of this server.

A ring buffer for each stream keeps what the node pushes, so many viewers cost the node one read.
For a viewer that falls behind the ring, text is fetched from the node's spool, or else from the
store. A lost connection is reopened; viewers see that as a change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.text import inert
from lattice.domain.attempts import AttemptLookup
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
from lattice.features.logs.service.log_keys import AttemptName
from lattice.observe.node_questions import NoAnswer, is_own_run, started_s, stream_question
from lattice.observe.node_stream import NodeStream, SharedStreams
from lattice.wire.conduit import Conduit, ConduitClosed
from lattice.wire.v1 import logs_pb2 as pb

_RING_BYTES = 2 * 1024 * 1024
_AT_ONCE_BYTES = 256 * 1024


@dataclass(slots=True)
class FedStream:
    """One stream as its node reports it."""

    reported_end: Position = field(default_factory=Position)
    """As the node reported it; the ring may have more."""
    stored_offset: int = 0
    path: str = ""
    labelled: bool = False
    trouble: str = ""
    ring: deque[Piece] = field(default_factory=deque)
    ring_bytes: int = 0
    ring_end: int = 0
    taken: int = -1
    """The furthest offset that a viewer requested from the ring."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `taken` changes."""
    no_patience_until: float = 0.0

    @property
    def crowded(self) -> bool:
        """True if more text would soon push the fastest viewer out of the ring."""
        if not self.ring or self.taken < self.ring[0].at.offset:
            return False
        return self.ring_end - self.taken > _RING_BYTES // 2

    def keep(self, piece: Piece) -> None:
        """Add the newest piece and drop the oldest."""
        if self.ring and piece.at.offset != self.ring_end:
            self.ring.clear()
            self.ring_bytes = 0
        size = len(piece.text)
        self.ring.append(piece)
        self.ring_bytes += size
        self.ring_end = piece.at.offset + size
        while self.ring_bytes > _RING_BYTES and len(self.ring) > 1:
            self.ring_bytes -= len(self.ring.popleft().text)

    @property
    def end(self) -> Position:
        """The known end."""
        if self.ring_end > self.reported_end.offset:
            # Lines are counted on request, not for every piece.
            self.reported_end = self.ring[-1].end
        return self.reported_end

    def pieces(self, offset: int) -> list[Piece]:
        """Text of the ring from an offset on, at most about 256 KiB; empty if it is not there."""
        if offset > self.taken:
            self.taken = offset
            self.moved.set()
        if not self.ring or not self.ring[0].at.offset <= offset < self.ring_end:
            return []
        # From the newest backwards: viewers mostly need the last few of very many.
        behind: deque[Piece] = deque()
        for piece in reversed(self.ring):
            behind.appendleft(piece)
            if piece.at.offset <= offset:
                break
        found, size = [behind.popleft().starting_at(offset)], 0
        for piece in behind:
            size += len(piece.text)
            if size > _AT_ONCE_BYTES:
                break
            found.append(piece)
        return _joined(found) if len(found) > 1 else found


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Join neighbours of the same time: later steps cost by piece, not by byte."""
    found = []
    for (time_ms, late), run in groupby(pieces, key=lambda each: (each.time_ms, each.late)):
        first, *others = run
        text = b"".join((first.text, *(each.text for each in others))) if others else first.text
        found.append(Piece(first.at, time_ms, late, text))
    return found


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
        owner_of: AttemptLookup,
        turn: asyncio.Semaphore | None = None,
    ) -> None:
        """`owner_of` assigns runs to attempts; `turn` is held while a connection is opened."""
        super().__init__(node, nodes, turn or asyncio.Semaphore(1))
        self._owner_of = owner_of
        self._before: float | None = None
        """The start of a run on that node that belongs to another attempt."""
        self.streams: dict[StreamKey, FedStream] = {}
        self.gaps: dict[StreamKey, tuple[Gap, ...]] = {}
        self.over = False
        self.trouble = ""
        """Why the node can't be reached now; empty if it can."""
        self.no_stream = ""
        """Why the node has no stream of the job; empty if it gave no reason."""
        self.clock_ahead_s = 0
        """How far its clock is ahead, in seconds; 0 if that is small."""
        self.reported = asyncio.Event()
        """Set once the node has reported its streams, or can't be reached."""
        self._name = name
        self._signer = signer
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._conduit: Conduit | None = None
        self._questions: dict[int, asyncio.Future[pb.FeedText]] = {}
        self._number = 0

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
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

    def answered(self) -> None:
        """The node is connected again."""
        if self.trouble:
            self.trouble = ""
            self._note_change()

    def lost(self, why: str) -> None:
        """Note the loss, and notify viewers."""
        self.trouble = why
        self.reported.set()
        self._leave_unanswered()
        self._note_change()

    def _leave_unanswered(self) -> None:
        for each in self._questions.values():
            if not each.done():
                each.set_exception(ConduitClosed())

    async def read(self, conduit: Conduit) -> None:
        """Read what the node pushes, as long as it belongs to this attempt."""
        while (message := await conduit.receive()) is not None:
            update = pb.FeedTell.FromString(message)
            if update.WhichOneof("tell") == "began" and not await self._is_own(update.began):
                # The node now reports another attempt; the next request excludes it.
                self._before = update.began
                conduit.close()
                return
            await self._let_read(self._take(update))

    async def _is_own(self, began: float) -> bool:
        return await is_own_run(self._owner_of, self._name, self.node, began)

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

    def _take(self, update: pb.FeedTell) -> FedStream | None:
        """Process a message; returns the stream that has grown, if any."""
        stream = None
        which = update.WhichOneof("tell")
        if which == "streams":
            self._take_streams(update.streams)
        elif which == "pushed":
            stream = self.streams.setdefault(_key(update.pushed), FedStream())
            for each in update.pushed.pieces:
                stream.keep(_piece(each))
        elif which == "fetched":
            waiting = self._questions.get(update.fetched.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(update.fetched)
        self._note_change()
        return stream

    def _take_streams(self, report: pb.FeedStreams) -> None:
        for each in report.streams:
            stream = self.streams.setdefault(_key(each), FedStream())
            stream.reported_end = max(stream.end, Position(each.offset, each.line))
            stream.stored_offset = each.stored
            stream.path, stream.labelled = each.path[:4096], each.labelled
            stream.trouble = each.trouble[:200]
            self._note_gaps(_key(each), each.gaps)
        self.over = report.over
        self.no_stream = inert(report.trouble[:_LONGEST_REASON])
        self.clock_ahead_s = report.clock_ahead_s
        self.reported.set()

    def _note_gaps(self, key: StreamKey, gaps: Iterable[pb.FeedGap]) -> None:
        """Keep earlier gaps too: a node reports only the newest."""
        known = {(each.at, each.cause, each.lost_bytes): each for each in self.gaps.get(key, ())}
        for gap in map(_gap, gaps):
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

    def __init__(
        self, nodes: NodeStreams, signer: GrantSigner, clock: Clock, owner_of: AttemptLookup
    ) -> None:
        self._owner_of = owner_of
        self._nodes = nodes
        self._signer = signer
        self._clock = clock
        self._streams: SharedStreams[tuple[str, str], NodeFeed] = SharedStreams(_IDLE_S)
        self.aclose = self._streams.aclose

    def of(self, name: AttemptName, node: str) -> AbstractContextManager[NodeFeed]:
        """The feed of one node; closed some time after the last viewer has left."""

        def make() -> NodeFeed:
            turns = self._streams.turns
            return NodeFeed(
                name, node, self._nodes, self._signer, self._clock, self._owner_of, turns
            )

        return self._streams.used((name.prefix, node), make)


def _key(message: pb.FeedText | pb.FeedStream) -> StreamKey:
    try:
        return LogKind(message.kind), LogSource.parse(message.source)
    except (BadSource, ValueError):
        raise NoAnswer("it names no stream") from None


def _piece(message: pb.FeedPiece) -> Piece:
    return Piece(
        Position(message.offset, message.line), _time_ms(message), message.late, message.text
    )


def _gap(message: pb.FeedGap) -> Gap:
    lost = message.lost_bytes if message.HasField("lost_bytes") else None
    try:
        cause = GapCause(message.cause)
    except ValueError:
        # A newer agent may know more causes; its other output must not be lost for that.
        cause = GapCause.UNKNOWN
    return Gap(Position(message.offset, message.line), cause, lost, _time_ms(message))


def _time_ms(message: pb.FeedPiece | pb.FeedGap) -> int:
    """Checked, because it is shown as a date later."""
    if not 0 <= message.time_ms <= LATEST_MS:
        raise NoAnswer("it names no time")
    return message.time_ms
