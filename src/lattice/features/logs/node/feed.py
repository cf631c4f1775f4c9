"""Serves a server that follows a job here: pushes new text, and returns older text on request.

One session serves all viewers of that server. The capture does not wait for a slow server. Beyond
its memory limit the feed keeps only positions. It reads that text again from the job's file or the
spool. What neither has any more is left out of the push; the server sees that by the offsets and
reads it from the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf

import msgspec

from lattice.base.errors import NotFound
from lattice.domain.logs import BadSource, LogKind, LogSource, Piece, Position
from lattice.domain.stream import Session
from lattice.features.logs.node.capture import Added, Stream
from lattice.features.logs.node.feedmessages import (
    GAP_BYTES,
    MESSAGE_BYTES,
    PIECE_BYTES,
    add_piece,
    cut,
    gap_message,
    in_parts,
    without_ends,
)
from lattice.features.logs.node.followed import FollowedFile
from lattice.features.logs.node.missed import Unfollowed, UnreadJobs
from lattice.features.logs.node.spool import SpoolReader
from lattice.wire.v1 import logs_pb2 as pb

_MOST_WAITING_BYTES = 4 * 1024 * 1024
"""Text in memory; beyond it only positions are kept, at most `_MOST_WAITING`."""
_MOST_WAITING = 10_000
_MOST_GAPS = 500
_CLOCK_OFF_S = 2.0
"""Viewers get a note if the clock is off by more than this."""
_REPORT_EVERY_S = 1.0


class FeedOpening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The job and the start of the attempt. Times are Unix seconds."""

    job_id: int
    started: float
    ended: float | None = None
    before: float | None = None
    """Runs that began then or later belong to another attempt."""
    look: bool = False
    """True: one answer with the time of the last write, no push."""


class LogFeed:
    """Serves streams of the kind `logs`."""

    def __init__(
        self,
        followed: Callable[[], Iterable[FollowedFile]],
        *,
        unread: UnreadJobs | None = None,
        to_server_time: Callable[[float], float] = lambda here_s: here_s,
        ahead_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`to_server_time` converts a time of the node's clock to the servers'.

        `unread` has the reasons why jobs have no stream here. `ahead_s` is how far the node's clock
        is ahead, if known.
        """
        self._followed = followed
        self._unread = unread
        self._to_server_time = to_server_time
        self._ahead_s = ahead_s

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = msgspec.json.decode(opening, type=FeedOpening)
        except msgspec.MsgspecError:
            raise NotFound("The question can't be read.") from None
        if asked.look:
            await session.send(_last_write(self._job(asked)).SerializeToString(), last=True)
            return
        await _Serving(
            session,
            lambda: self._job(asked),
            lambda: self._without_stream(asked),
            self._to_server_time,
            self._ahead_s,
        ).run()

    def _job(self, asked: FeedOpening) -> FollowedFile | None:
        """The newest run of the job that began within the attempt."""
        lives = [
            each
            for each in self._followed()
            if each.identity.job_id == asked.job_id
            and (started := self._to_server_time(each.identity.started)) >= asked.started - 2.0
            and (asked.ended is None or started <= asked.ended + 2.0 or each.noticed_late)
            and (asked.before is None or started < asked.before)
        ]
        return max(lives, key=lambda each: each.identity.started, default=None)

    def _without_stream(self, asked: FeedOpening) -> Unfollowed:
        """What is known of a job that is over and not followed."""
        if self._unread is None:
            return Unfollowed()
        # A server that asked during the run also needs the reason after the end.
        ended = inf if asked.ended is None else asked.ended
        return self._unread.of(asked.job_id, asked.started, ended, self._ahead_s() or 0.0)


_Key = tuple[LogKind, LogSource]


@dataclass(slots=True)
class _Waiting:
    """Text that was read and is not sent yet. Without `text` it is in the file or the spool."""

    key: _Key
    at: Position
    size: int
    time_ms: int
    late: bool
    text: bytes | None


class _Serving:
    def __init__(
        self,
        session: Session,
        find: Callable[[], FollowedFile | None],
        without_stream: Callable[[], Unfollowed],
        to_server_time: Callable[[float], float],
        ahead_s: Callable[[], float | None],
    ) -> None:
        self._session = session
        self._find = find
        self._without_stream = without_stream
        self._to_server_time = to_server_time
        self._ahead_s = ahead_s
        self._followed: FollowedFile | None = None
        self._reported_run: FollowedFile | None = None
        """The run that the server assigns the pushed text to."""
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._missed = False
        """True if some text is neither waiting nor sent."""
        self._changed = asyncio.Event()
        self._reported: pb.FeedStreams | None = None
        self._reported_at = 0.0
        self._report_due = True
        """True if a stream may be new, changed or ended since the last report."""
        self._sent: dict[_Key, Piece] = {}
        """The last piece of each stream that the server got."""
        self._readers: dict[_Key, SpoolReader] = {}
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Run until the server has sent its last message."""
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
            self._forget()

    def _forget(self) -> None:
        """Drop what belongs to one capture and not to the next."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._sent.clear()

    def _on_added(self, added: Added | None) -> None:
        # Runs in the capture's thread.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, added)

    def _take(self, added: Added | None) -> None:
        if added is not None and (added.kind, added.source) not in self._sent:
            # The server must know a stream before its text.
            self._report_due = True
        if added is not None and len(self._waiting) < _MOST_WAITING:
            size = len(added.text)
            fits = self._waiting_bytes + size <= _MOST_WAITING_BYTES
            self._waiting_bytes += size if fits else 0
            self._waiting.append(
                _Waiting(
                    (added.kind, added.source),
                    added.at,
                    size,
                    added.time_ms,
                    added.late,
                    added.text if fits else None,
                )
            )
        elif added is not None:
            self._missed = True
        else:
            self._report_due = True
        self._changed.set()

    async def _push(self) -> None:
        timer: asyncio.TimerHandle | None = None
        try:
            while True:
                followed = self._find()
                if followed is not None and followed is not self._followed:
                    await self._turn_to(followed)
                await self._report_streams()
                self._changed.clear()
                while self._waiting:
                    await self._send_waiting()
                    await self._report_streams()
                # One timer serves many changes.
                if timer is None or timer.when() <= self._loop.time():
                    timer = self._loop.call_later(_REPORT_EVERY_S, self._take, None)
                await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
            self._listen_to(None)

    async def _turn_to(self, followed: FollowedFile) -> None:
        """Switch to the next run of the job; the server first decides which attempt it is."""
        self._listen_to(None)
        while self._waiting:
            await self._send_waiting()
        self._forget()
        self._listen_to(followed)
        await self._send(pb.FeedTell(began=self._to_server_time(followed.identity.started)))
        self._reported_run = followed
        self._report_due = True

    def _listen_to(self, followed: FollowedFile | None) -> None:
        if self._followed is not None:
            self._followed.capture.unlisten(self._on_added)
        self._followed = followed
        if followed is not None:
            followed.capture.listen(self._on_added)

    async def _send_waiting(self) -> None:
        """Send the oldest, and those right behind it of the same stream that fit in the message."""
        first = self._waiting.popleft()
        if first.text is None:
            await self._send_again(first)
            return
        self._waiting_bytes -= first.size
        pieces = list(cut(Piece(first.at, first.time_ms, first.late, first.text)))
        room = MESSAGE_BYTES - first.size - PIECE_BYTES
        while self._waiting and (each := self._waiting[0]).key == first.key:
            room -= each.size + PIECE_BYTES
            if each.text is None or room < 0:
                break
            self._waiting.popleft()
            self._waiting_bytes -= each.size
            pieces.append(Piece(each.at, each.time_ms, each.late, each.text))
        await self._send_pieces(first.key, pieces)

    async def _send_again(self, waiting: _Waiting) -> None:
        stream = self._stream_of(waiting.key)
        if stream is None:
            self._missed = True
            return
        # The file itself is the buffer; the spool is read only if the file lost the text.
        text = await asyncio.to_thread(stream.tail.read_again, waiting.at.offset, waiting.size)
        if text:
            piece = Piece(waiting.at, waiting.time_ms, waiting.late, text)
            await self._send_pieces(waiting.key, list(cut(piece)))
            return
        reader = self._readers.get(waiting.key)
        if reader is None:
            reader = self._readers[waiting.key] = SpoolReader(stream.spool)
        at, end = waiting.at.offset, waiting.at.offset + waiting.size
        while at < end:
            pieces = await asyncio.to_thread(reader.pieces, at)
            if not pieces:
                self._missed = True
                return
            # A frame may reach further than what was read at that moment.
            if pieces[-1].end_offset > end:
                pieces = [each for each in pieces if each.at.offset < end]
                last = pieces[-1]
                text = last.text[: end - last.at.offset]
                pieces[-1] = Piece(last.at, last.time_ms, last.late, text)
            await self._send_pieces(waiting.key, [part for each in pieces for part in cut(each)])
            at = pieces[-1].end_offset

    async def _send_pieces(self, key: _Key, pieces: list[Piece]) -> None:
        message, size = self._pushed(key), 0
        for piece in pieces:
            cost = len(piece.text) + PIECE_BYTES
            if size and size + cost > MESSAGE_BYTES:
                await self._send(message)
                message, size = self._pushed(key), 0
            add_piece(message.pushed, piece)
            size += cost
        await self._send(message)
        self._sent[key] = pieces[-1]

    @staticmethod
    def _pushed(key: _Key) -> pb.FeedTell:
        message = pb.FeedTell()
        message.pushed.kind, message.pushed.source = key[0].value, str(key[1])
        return message

    async def _report_streams(self) -> None:
        """Report changes of streams at once; their ends, which the text implies, once a second."""
        now = self._loop.time()
        if not self._report_due and now - self._reported_at < _REPORT_EVERY_S:
            return
        self._report_due = False
        capture = self._reported_run.capture if self._reported_run else None
        over = capture is not None and capture.over
        trouble = ""
        if self._reported_run is not None and not self._reported_run.capture.streams:
            trouble = self._reported_run.trouble
        elif self._reported_run is None:
            unfollowed = self._without_stream()
            trouble, over = unfollowed.reason, unfollowed.over
        streams = (
            [self._stream_report(each, over=over) for each in capture.streams] if capture else []
        )
        ahead_s = self._ahead_s() or 0.0
        report = pb.FeedStreams(
            streams=streams,
            over=over,
            clock_ahead_s=round(ahead_s) if abs(ahead_s) > _CLOCK_OFF_S else 0,
            trouble=trouble,
        )
        if report == self._reported:
            return
        if now - self._reported_at < _REPORT_EVERY_S and without_ends(report) == without_ends(
            self._reported
        ):
            return
        self._reported, self._reported_at = report, now
        for part in in_parts(report):
            await self._send(pb.FeedTell(streams=part))

    def _stream_report(self, stream: Stream, *, over: bool) -> pb.FeedStream:
        head, end = stream.spool.head, stream.spool.end
        key = (head.kind, head.source)
        waits = next((each.at for each in self._waiting if each.key == key), None)
        # The server need not request what is about to be pushed. At the end it gets the true end.
        if over:
            pass
        elif waits is not None and key not in self._sent:
            end = waits
        elif key in self._sent and not (self._missed and waits is None):
            end = self._sent[key].end
        self._sent.setdefault(key, Piece(end, 0, False, b""))
        return pb.FeedStream(
            kind=head.kind.value,
            source=str(head.source),
            path=head.path,
            labelled=head.labelled,
            offset=end.offset,
            line=end.line,
            stored=stream.spool.stored.offset,
            trouble=stream.trouble,
            gaps=map(gap_message, stream.spool.newest_gaps),
        )

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
        gaps = stream.spool.gaps()[-_MOST_GAPS:]
        most = min(ask.most_bytes or MESSAGE_BYTES, MESSAGE_BYTES - GAP_BYTES * len(gaps))
        for part in (part for each in stream.spool.pieces(ask.offset) for part in cut(each)):
            most -= len(part.text) + PIECE_BYTES
            if answer.pieces and most < 0:
                break
            # A single piece is cut if it does not fit.
            text = part.text[: len(part.text) + min(0, most)]
            add_piece(answer, Piece(part.at, part.time_ms, part.late, text))
        answer.gone = not answer.pieces and ask.offset < stream.spool.end.offset
        answer.gaps.extend(map(gap_message, gaps))
        return answer

    def _stream(self, ask: pb.FeedAsk) -> Stream | None:
        try:
            return self._stream_of((LogKind(ask.kind), LogSource.parse(ask.source)))
        except (BadSource, ValueError):
            return None

    def _stream_of(self, key: _Key) -> Stream | None:
        for each in self._reported_run.capture.streams if self._reported_run else ():
            if (each.spool.head.kind, each.spool.head.source) == key:
                return each
        return None

    async def _send(self, message: pb.FeedTell) -> None:
        async with self._writing:
            await self._session.send(message.SerializeToString())


def _last_write(followed: FollowedFile | None) -> pb.OutputLook:
    if followed is None:
        return pb.OutputLook(trouble="the agent does not follow this job")
    streams = followed.capture.streams
    if not streams and followed.trouble:
        return pb.OutputLook(trouble=followed.trouble)
    return pb.OutputLook(last_ms=max((each.tail.written_ms for each in streams), default=0))
