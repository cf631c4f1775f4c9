"""The answer to a server that follows a job here: what is read is pushed, what is older is fetched.

One session serves all viewers of that server. A server that is slow is not waited for by the
capture: what does not fit is left out of the push, and the server, which counts offsets, fetches
it. Nothing is read twice for it: what was just read is in the spool.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from lattice.base.errors import NotFound
from lattice.domain.logs import BadSource, LogKind, LogSource, Piece
from lattice.domain.stream import Session
from lattice.features.logs.node.capture import Added, JobCapture, Stream
from lattice.features.logs.node.collecting import Followed
from lattice.wire.v1 import logs_pb2 as pb

_MOST_WAITING_BYTES = 4 * 1024 * 1024
_MESSAGE_BYTES = 60 * 1024
"""Of text: a message of a pipe has room for 64 KiB."""
_LOOK_S = 1.0


class FeedOpening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which job: its number, and when the attempt that is meant began."""

    job_id: int
    started: float
    ended: float | None = None


class LogFeed:
    """Serves streams of the kind `logs`."""

    def __init__(self, followed: Callable[[], Iterable[Followed]]) -> None:
        self._followed = followed

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = msgspec.json.decode(opening, type=FeedOpening)
        except msgspec.MsgspecError:
            raise NotFound("The question can't be read.") from None
        await _Serving(session, lambda: self._job(asked)).run()

    def _job(self, asked: FeedOpening) -> Followed | None:
        """The newest life of the job that began within the attempt."""
        lives = [
            each
            for each in self._followed()
            if each.identity.job_id == asked.job_id
            and each.identity.started >= asked.started - 2.0
            and (asked.ended is None or each.identity.started <= asked.ended + 2.0)
        ]
        return max(lives, key=lambda each: each.identity.started, default=None)


class _Serving:
    def __init__(self, session: Session, find: Callable[[], Followed | None]) -> None:
        self._session = session
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._added: deque[Added] = deque()
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._told: pb.FeedStreams | None = None
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Until the server has said its last."""
        pushing = asyncio.create_task(self._push(), name="feed")
        answering = asyncio.create_task(self._answer(), name="feed answers")
        try:
            await asyncio.wait((pushing, answering), return_when=asyncio.FIRST_COMPLETED)
            for task in (pushing, answering):
                if task.done():
                    task.result()
        finally:
            for task in (pushing, answering):
                task.cancel()
            await asyncio.gather(pushing, answering, return_exceptions=True)

    def _heard(self, added: Added | None) -> None:
        # In the capture's thread.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, added)

    def _take(self, added: Added | None) -> None:
        if added is not None and self._waiting_bytes < _MOST_WAITING_BYTES:
            self._added.append(added)
            self._waiting_bytes += len(added.text)
        self._changed.set()

    async def _push(self) -> None:
        capture: JobCapture | None = None
        try:
            while True:
                followed = self._find()
                if followed is not None and followed.capture is not capture:
                    if capture is not None:
                        capture.unlisten(self._heard)
                    capture = followed.capture
                    capture.listen(self._heard)
                await self._tell_streams(capture)
                self._changed.clear()
                while self._added:
                    added = self._added.popleft()
                    self._waiting_bytes -= len(added.text)
                    await self._send_added(added)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
        finally:
            if capture is not None:
                capture.unlisten(self._heard)

    async def _send_added(self, added: Added) -> None:
        for piece in _cut(Piece(added.at, added.time_ms, added.late, added.text)):
            text = pb.FeedText(
                kind=added.kind.value, source=str(added.source), pieces=[_piece(piece)]
            )
            await self._send(pb.FeedTell(pushed=text))

    async def _tell_streams(self, capture: JobCapture | None) -> None:
        streams = [_stream(each) for each in capture.streams] if capture else []
        told = pb.FeedStreams(streams=streams, over=capture is not None and capture.over)
        if told != self._told:
            self._told = told
            await self._send(pb.FeedTell(streams=told))

    async def _answer(self) -> None:
        while (message := await self._session.receive()) is not None:
            ask = pb.FeedAsk.FromString(bytes(message))
            await self._send(pb.FeedTell(fetched=await asyncio.to_thread(self._fetched, ask)))

    def _fetched(self, ask: pb.FeedAsk) -> pb.FeedText:
        answer = pb.FeedText(id=ask.id, kind=ask.kind, source=ask.source)
        stream = self._stream(ask)
        if stream is None:
            answer.gone = True
            return answer
        most = min(ask.most_bytes or _MESSAGE_BYTES, _MESSAGE_BYTES)
        for piece in stream.spool.pieces(ask.offset):
            for part in _cut(piece):
                if most <= 0:
                    break
                answer.pieces.append(_piece(part))
                most -= len(part.text)
        answer.gone = not answer.pieces and ask.offset < stream.spool.end.offset
        answer.gaps.extend(
            pb.FeedGap(
                offset=each.at.offset,
                line=each.at.line,
                cause=each.cause.value,
                lost_bytes=each.lost_bytes,
                time_ms=each.time_ms,
            )
            for each in stream.spool.gaps()
        )
        return answer

    def _stream(self, ask: pb.FeedAsk) -> Stream | None:
        followed = self._find()
        try:
            wanted = LogKind(ask.kind), LogSource.parse(ask.source)
        except (BadSource, ValueError):
            return None
        for each in followed.capture.streams if followed else ():
            if (each.spool.head.kind, each.spool.head.source) == wanted:
                return each
        return None

    async def _send(self, tell: pb.FeedTell) -> None:
        async with self._writing:
            await self._session.send(tell.SerializeToString())


def _cut(piece: Piece) -> Iterable[Piece]:
    at = piece.at
    for begin in range(0, len(piece.text), _MESSAGE_BYTES):
        part = Piece(at, piece.time_ms, piece.late, piece.text[begin : begin + _MESSAGE_BYTES])
        yield part
        at = part.end


def _piece(piece: Piece) -> pb.FeedPiece:
    return pb.FeedPiece(
        offset=piece.at.offset,
        line=piece.at.line,
        time_ms=piece.time_ms,
        late=piece.late,
        text=piece.text,
    )


def _stream(stream: Stream) -> pb.FeedStream:
    head, end = stream.spool.head, stream.spool.end
    return pb.FeedStream(
        kind=head.kind.value,
        source=str(head.source),
        path=head.path,
        labelled=head.labelled,
        offset=end.offset,
        line=end.line,
        stored=stream.spool.stored.offset,
        trouble=stream.trouble,
    )
