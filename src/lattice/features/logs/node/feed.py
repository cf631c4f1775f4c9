"""Serves a server that follows a job here: pushes new text, and returns older text on request.

One session serves all viewers of that server. The capture does not wait for a slow server. Beyond
its memory limit the feed keeps only positions. It reads that text again from the job's file or the
spool. What neither has any more is left out of the push; the server sees that by the offsets and
reads it from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
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
    TEXT_BYTES,
    add_piece,
    cut,
    frame_message,
    gap_message,
    in_parts,
    pushed_message,
    without_ends,
)
from lattice.features.logs.node.filenames import StreamKey
from lattice.features.logs.node.followed import FollowedFile
from lattice.features.logs.node.missed import Unfollowed, UnreadJobs
from lattice.features.logs.node.spool import SpoolReader
from lattice.features.logs.node.waiting_text import WaitingText, WaitingTexts
from lattice.wire.v1 import logs_pb2 as pb

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
        self._waiting = WaitingTexts()
        self._takes_frames = False
        """True if the server can read frames."""
        self._missed = False
        """True if some text is neither waiting nor sent."""
        self._changed = asyncio.Event()
        self._idle = False
        """True while everything is sent and the push waits for more."""
        self._timer: asyncio.TimerHandle | None = None
        self._reported: pb.FeedStreams | None = None
        self._reported_at = 0.0
        self._report_due = True
        """True if a stream may be new, changed or ended since the last report."""
        self._sent: dict[StreamKey, Position] = {}
        """Up to where the server got each stream."""
        self._readers: dict[StreamKey, SpoolReader] = {}
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
        if added is None:
            self._report_due = True
        elif self._sent_at_once(added):
            return
        else:
            self._wait_with(added)
        self._idle = False
        self._changed.set()

    def _sent_at_once(self, added: Added) -> bool:
        """Send without waking the push, if nothing is before it and there is room."""
        key = (added.kind, added.source)
        direct = self._idle and key in self._sent and not self._writing.locked()
        if added.packed is not None and self._takes_frames:
            return False
        if not direct or len(added.text) > TEXT_BYTES:
            return False
        piece = Piece(added.at, added.time_ms, added.late, added.text, added.lines)
        if not self._session.try_send(pushed_message(*key, [piece])):
            return False
        self._sent[key] = piece.end
        self._report_later()
        return True

    def _wait_with(self, added: Added) -> None:
        if (added.kind, added.source) not in self._sent:
            # The server must know a stream before its text.
            self._report_due = True
        if not self._waiting.add(added, packed=self._takes_frames):
            self._missed = True

    def _report_later(self) -> None:
        """Report the streams within a second. One timer serves many changes."""
        if self._timer is None or self._timer.when() <= self._loop.time():
            self._timer = self._loop.call_later(_REPORT_EVERY_S, self._take, None)

    async def _push(self) -> None:
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
                self._report_later()
                self._idle = not self._changed.is_set()
                await self._changed.wait()
        finally:
            self._idle = False
            if self._timer is not None:
                self._timer.cancel()
            self._listen_to(None)

    async def _turn_to(self, followed: FollowedFile) -> None:
        """Switch to the next run of the job; the server first decides which attempt it is."""
        self._listen_to(None)
        while self._waiting:
            await self._send_waiting()
        self._forget()
        self._listen_to(followed)
        began = pb.FeedTell(began=self._to_server_time(followed.identity.started))
        await self._send(began.SerializeToString())
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
        first = self._waiting.pop()
        if first.packed is not None:
            # Shielded: the capture needs it, too.
            await self._send_frame(first, await asyncio.shield(asyncio.wrap_future(first.packed)))
            return
        if first.text is None:
            await self._send_again(first)
            return
        pieces = list(cut(first.piece(first.text)))
        room = MESSAGE_BYTES - first.size - 2 * PIECE_BYTES
        while (piece := self._waiting.pop_of(first.key, room)) is not None:
            pieces.append(piece)
            room -= len(piece.text) + PIECE_BYTES
        await self._send_pieces(first.key, pieces)

    async def _send_again(self, waiting: WaitingText) -> None:
        stream = self._stream_of(waiting.key)
        if stream is None:
            self._missed = True
            return
        reader = self._readers.get(waiting.key)
        if reader is None:
            reader = self._readers[waiting.key] = SpoolReader(stream.spool)
        if self._takes_frames:
            found = await asyncio.to_thread(reader.stored_frame, waiting.at.offset)
            if found is not None and (found[0].begin, found[0].end) == (waiting.at, waiting.end):
                await self._send_frame(waiting, found[1])
                return
        # The file itself is the buffer; the spool is read only if the file lost the text.
        text = await asyncio.to_thread(stream.tail.read_again, waiting.at.offset, waiting.size)
        if text:
            await self._send_pieces(waiting.key, list(cut(waiting.piece(text))))
            return
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

    async def _send_frame(self, waiting: WaitingText, stored: bytes) -> None:
        frame = pb.FeedFrame(
            offset=waiting.at.offset,
            line=waiting.at.line,
            time_ms=waiting.time_ms,
            late=waiting.late,
            plain_bytes=waiting.size,
            lines=waiting.lines,
            stored=stored,
        )
        await self._send(frame_message(*waiting.key, frame))
        self._sent[waiting.key] = waiting.end

    async def _send_pieces(self, key: StreamKey, pieces: list[Piece]) -> None:
        fitting: list[Piece] = []
        size = 0
        for piece in pieces:
            cost = len(piece.text) + PIECE_BYTES
            if fitting and size + cost > MESSAGE_BYTES:
                await self._send(pushed_message(*key, fitting))
                fitting, size = [], 0
            fitting.append(piece)
            size += cost
        await self._send(pushed_message(*key, fitting))
        self._sent[key] = pieces[-1].end

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
            await self._send(pb.FeedTell(streams=part).SerializeToString())

    def _stream_report(self, stream: Stream, *, over: bool) -> pb.FeedStream:
        head, end = stream.spool.head, stream.spool.end
        key = (head.kind, head.source)
        waits = self._waiting.first_of(key)
        # The server need not request what is about to be pushed. At the end it gets the true end.
        if over:
            pass
        elif waits is not None and key not in self._sent:
            end = waits
        elif key in self._sent and not (self._missed and waits is None):
            end = self._sent[key]
        self._sent.setdefault(key, end)
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
            if ask.takes_frames:
                self._takes_frames = True
                continue
            await self._send(await asyncio.to_thread(self._fetched, ask))

    def _fetched(self, ask: pb.FeedAsk) -> bytes:
        message = pb.FeedTell()
        # Filled in place: a message put into another would be copied.
        answer = message.fetched
        answer.id, answer.kind, answer.source = ask.id, ask.kind, ask.source
        stream = self._stream(ask)
        if stream is None:
            answer.gone = True
            return message.SerializeToString()
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
        return message.SerializeToString()

    def _stream(self, ask: pb.FeedAsk) -> Stream | None:
        try:
            return self._stream_of((LogKind(ask.kind), LogSource.parse(ask.source)))
        except (BadSource, ValueError):
            return None

    def _stream_of(self, key: StreamKey) -> Stream | None:
        for each in self._reported_run.capture.streams if self._reported_run else ():
            if (each.spool.head.kind, each.spool.head.source) == key:
                return each
        return None

    async def _send(self, message: bytes) -> None:
        async with self._writing:
            await self._session.send(message)


def _last_write(followed: FollowedFile | None) -> pb.OutputLook:
    if followed is None:
        return pb.OutputLook(trouble="the agent does not follow this job")
    streams = followed.capture.streams
    if not streams and followed.trouble:
        return pb.OutputLook(trouble=followed.trouble)
    return pb.OutputLook(last_ms=max((each.tail.written_ms for each in streams), default=0))
