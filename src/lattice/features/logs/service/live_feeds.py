"""One open node stream for each node and attempt, shared by all viewers of this server.

A ring buffer for each stream keeps what the node pushes, so many viewers cost the node one read.
For a viewer that falls behind the ring, text is fetched from the node's spool, or else from the
store. A lost connection is reopened; viewers see that as a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Protocol

import msgspec

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.text import inert
from lattice.domain.attempts import AttemptLookup
from lattice.domain.logchunk import FRAME_BYTES, Frame, PlacedFrame
from lattice.domain.logs import (
    LATEST_MS,
    BadSource,
    Gap,
    GapCause,
    LogKind,
    LogSource,
    Piece,
    Position,
    StreamName,
)
from lattice.domain.stream import Lane, NodeStreams, StreamKind, StreamQuestion
from lattice.features.logs.service.frames import PackedFrame
from lattice.features.logs.service.live_stream import RING_BYTES, FedStream
from lattice.features.logs.service.log_keys import AttemptName
from lattice.observe.node_questions import NoAnswer, is_own_run, started_s, stream_question
from lattice.observe.node_stream import NodeStream, SharedStreams
from lattice.observe.opening_turns import OpeningTurns
from lattice.wire.conduit import Conduit, ConduitClosed
from lattice.wire.v1 import logs_pb2 as pb

_PATIENCE_S = 0.25
_NO_PATIENCE_S = 10.0
"""A viewer that reads less than half of the ring in 0.25 s is not waited for during this time."""
_IDLE_S = 20.0
_FETCH_S = 15.0
_MOST_GAPS = 1000
_LONGEST_REASON = 300
_ALL_RINGS_BYTES = 256 * 1024 * 1024
"""For the rings of one attempt, shared out among its nodes."""
_LEAST_RING_BYTES = 64 * 1024
_MOST_KEYS = 4096
StreamKey = tuple[LogKind, LogSource]


class Gone(Exception):
    """The node does not have the text any more; the store has."""


class FeedListener(Protocol):
    """A viewer. Its methods return at once."""

    def node_changed(self, node: str) -> None:
        """The node was lost, is there again, or has reported something about itself."""

    def stream_changed(self, stream: FedStream) -> None:
        """The stream is new, or has more text, a gap or an end."""


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
        turns: OpeningTurns | None = None,
        among: int = 1,
    ) -> None:
        """`owner_of` assigns runs to attempts; connections are opened in `turns`.

        `among` is the number of nodes that are followed together.
        """
        super().__init__(node, nodes, turns or OpeningTurns())
        self._owner_of = owner_of
        self._among = among
        self._before: float | None = None
        """The start of a run on that node that belongs to another attempt."""
        self.streams: dict[StreamKey, FedStream] = {}
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
        self._listeners: list[FeedListener] = []
        self._conduit: Conduit | None = None
        self._questions: dict[int, asyncio.Future[pb.FeedText]] = {}
        self._number = 0

    def join(self, listener: FeedListener) -> None:
        """Report every change to this viewer from now on, and first what there is."""
        self._listeners.append(listener)
        listener.node_changed(self.node)
        for stream in self.streams.values():
            listener.stream_changed(stream)

    def leave(self, listener: FeedListener) -> None:
        """Report no more to this viewer."""
        self._listeners.remove(listener)

    def _note_node(self) -> None:
        for each in self._listeners:
            each.node_changed(self.node)

    def _note_streams(self, streams: Iterable[FedStream]) -> None:
        for stream in streams:
            for each in self._listeners:
                each.stream_changed(stream)

    async def fetch(self, key: StreamKey, offset: int) -> list[Piece]:
        """Text from the node's spool. Raises `Gone` and `Unavailable`."""
        conduit = self._conduit
        if conduit is None or self.trouble:
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
            stream = self._stream(key)
            if _add_gaps(stream, text.gaps):
                self._note_streams((stream,))
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
            self._note_node()

    def lost(self, why: str) -> None:
        """Note the loss, and notify viewers."""
        self.trouble = why
        self.reported.set()
        self._leave_unanswered()
        self._note_node()

    def _leave_unanswered(self) -> None:
        for each in self._questions.values():
            if not each.done():
                each.set_exception(ConduitClosed())

    async def read(self, conduit: Conduit) -> None:
        """Read what the node pushes, as long as it belongs to this attempt."""
        # Agents of the previous release take it for a question about no stream.
        await conduit.send(pb.FeedAsk(takes_frames=True).SerializeToString())
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
        which = update.WhichOneof("tell")
        if which == "streams":
            self._take_report(update.streams)
        elif which == "pushed":
            stream = self._stream(_key(update.pushed))
            stream.most_ring_bytes = self._most_ring_bytes()
            for each in update.pushed.pieces:
                stream.keep(_piece(each))
            for frame in update.pushed.frames:
                stream.keep(_frame(frame))
            self._note_streams((stream,))
            return stream
        elif which == "fetched":
            waiting = self._questions.get(update.fetched.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(update.fetched)
        return None

    def _take_report(self, report: pb.FeedStreams) -> None:
        changed = []
        for each in report.streams:
            key = _key(each)
            # A new stream may be empty, and then differs in nothing.
            is_new = key not in self.streams
            stream = self._stream(key)
            if _take_state(stream, each) or is_new:
                changed.append(stream)
        if report.over != self.over:
            self.over = report.over
            changed = list(self.streams.values())
        about = (inert(report.trouble[:_LONGEST_REASON]), report.clock_ahead_s)
        is_first = not self.reported.is_set()
        self.reported.set()
        if is_first or about != (self.no_stream, self.clock_ahead_s):
            self.no_stream, self.clock_ahead_s = about
            self._note_node()
        self._note_streams(changed)

    def _stream(self, key: StreamKey) -> FedStream:
        """The stream of this key, made if there is none."""
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = FedStream(StreamName(self.node, *key))
        return stream

    def _most_ring_bytes(self) -> int:
        """The share of one stream in the memory for all rings of the attempt."""
        share = _ALL_RINGS_BYTES // (self._among * len(self.streams))
        return max(_LEAST_RING_BYTES, min(RING_BYTES, share))

    def question(self, session: str, *, resume: bool) -> StreamQuestion:
        """The request for what the node has of this attempt, and for what follows."""
        attempt = self._name.attempt
        asked = {
            "job_id": self._name.allocation.job_id,
            "started": started_s(self._name),
            "ended": attempt.ended.timestamp() if attempt.ended else None,
        }
        # Only if set: agents of the previous release reject the field.
        opening = msgspec.json.encode(asked | ({"before": self._before} if self._before else {}))
        return stream_question(
            self._signer,
            StreamKind.LOGS,
            self.node,
            self._name,
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

    @contextmanager
    def opened(
        self, name: AttemptName, nodes: Sequence[str], listener: FeedListener
    ) -> Iterator[dict[str, NodeFeed]]:
        """The feeds of these nodes, for one viewer.

        Each closes some time after its last viewer has left.
        """
        prefix, found = name.prefix, {}
        try:
            for node in nodes:
                make = partial(self._new, name, node, len(nodes))
                found[node] = feed = self._streams.join((prefix, node), make)
                feed.join(listener)
            yield found
        finally:
            for node, feed in found.items():
                feed.leave(listener)
                self._streams.leave((prefix, node), feed)

    def _new(self, name: AttemptName, node: str, among: int) -> NodeFeed:
        turns = self._streams.turns
        return NodeFeed(
            name, node, self._nodes, self._signer, self._clock, self._owner_of, turns, among
        )


def _take_state(stream: FedStream, report: pb.FeedStream) -> bool:
    """Take over what a node reports of a stream; True if a viewer may see a difference."""
    before = (stream.end, stream.stored_offset, stream.labelled)
    stream.reported_end = max(stream.end, Position(report.offset, report.line))
    stream.stored_offset = report.stored
    stream.path, stream.labelled = report.path[:4096], report.labelled
    stream.trouble = report.trouble[:200]
    has_gaps = _add_gaps(stream, report.gaps)
    return has_gaps or (stream.end, stream.stored_offset, stream.labelled) != before


def _add_gaps(stream: FedStream, gaps: Iterable[pb.FeedGap]) -> bool:
    """True if one is new. Earlier gaps stay too: a node reports only the newest."""
    known = {(each.at, each.cause, each.lost_bytes): each for each in stream.gaps}
    count = len(known)
    for gap in map(_gap, gaps):
        known[gap.at, gap.cause, gap.lost_bytes] = gap
    if len(known) == count:
        return False
    stream.gaps = tuple(known.values())[-_MOST_GAPS:]
    return True


def _key(message: pb.FeedText | pb.FeedStream) -> StreamKey:
    return _key_of(message.kind, message.source)


@lru_cache(_MOST_KEYS)
def _key_of(kind: str, source: str) -> StreamKey:
    try:
        return LogKind(kind), LogSource.parse(source)
    except (BadSource, ValueError):
        raise NoAnswer("it names no stream") from None


def _piece(message: pb.FeedPiece) -> Piece:
    return Piece(
        Position(message.offset, message.line), _time_ms(message), message.late, message.text
    )


def _frame(message: pb.FeedFrame) -> PackedFrame:
    if not (
        0 < message.plain_bytes <= FRAME_BYTES
        and message.lines <= message.plain_bytes
        and message.stored
    ):
        raise NoAnswer("it has no frame")
    marks = (message.plain_bytes, _time_ms(message))
    frame = Frame(len(message.stored), message.plain_bytes, message.lines, marks, message.late)
    at = Position(message.offset, message.line)
    return PackedFrame(PlacedFrame(frame, at, 0), message.stored)


def _gap(message: pb.FeedGap) -> Gap:
    lost = message.lost_bytes if message.HasField("lost_bytes") else None
    try:
        cause = GapCause(message.cause)
    except ValueError:
        # A newer agent may know more causes; its other output must not be lost for that.
        cause = GapCause.UNKNOWN
    return Gap(Position(message.offset, message.line), cause, lost, _time_ms(message))


def _time_ms(message: pb.FeedPiece | pb.FeedFrame | pb.FeedGap) -> int:
    """Checked, because it is shown as a date later."""
    if not 0 <= message.time_ms <= LATEST_MS:
        raise NoAnswer("it names no time")
    return message.time_ms
