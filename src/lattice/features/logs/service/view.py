"""One stream of a query.

It is read from the store as far as that goes, and from its node from there on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from sys import intern
from typing import Protocol, TypeAlias

from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.logchunk import PlacedFrame
from lattice.domain.logs import Gap, GapCause, Piece, Position, StreamName
from lattice.features.logs.lines import LineAssembler, Lines
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.frames import FrameForm, PackedFrame, PassedFrame
from lattice.features.logs.service.live_feeds import Gone, NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.stored import StoredStream

_NO_END = 1 << 62
_FIRST_BATCH_BYTES = 64 * 1024
_MOST_BATCH_BYTES = 512 * 1024
_MOST_BATCH = 256
"""Limits of a batch to filter: small at first, for a quick first answer."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The result of a filter for some lines: runs with their ranks, or nothing."""

    at: Position
    end: Position
    time_ms: int
    runs: tuple[tuple[int | None, Lines], ...] = ()


ReadItem: TypeAlias = Lines | Gap | PassedFrame
Item: TypeAlias = ReadItem | Filtered


class ItemFilter(Protocol):
    """Filters lines of a stream, in workers."""

    def works_on(self, stream: StreamView) -> bool:
        """False if it would change nothing."""

    async def filtered(self, stream: StreamView, items: list[Lines | Gap]) -> list[Item]:
        """The items, filtered, in the same order."""


@dataclass(frozen=True, slots=True)
class ViewStart:
    """Where to begin in a stream: at a position, or at the first line that fits."""

    at: Position | None = None
    line: int = 0
    offset: int = 0
    time_ms: int = 0
    until_ms: int | None = None
    """Text that was read later is not wanted."""

    def fits(self, lines: Lines) -> bool:
        return (
            lines.end.line > self.line
            and lines.end.offset > self.offset
            and lines.time_ms >= self.time_ms
        )

    def covers(self, gap: Gap) -> bool:
        return (
            (self.at is None or gap.at >= self.at)
            and gap.at.line >= self.line
            and gap.at.offset >= self.offset
            and gap.time_ms >= self.time_ms
        )


_BEGIN = Position()
_FROM_BEGIN = ViewStart()


class StreamView:
    """One stream of a query.

    A viewer may have thousands: between two visits it holds positions and a begun line, no text.
    """

    __slots__ = (
        "_archive",
        "_fed",
        "_given",
        "_last_reported",
        "_limit",
        "_ragged",
        "_ready",
        "_reported_gaps",
        "_start",
        "feed",
        "form",
        "lines",
        "name",
        "number",
        "pending",
        "stored",
        "text",
    )

    def __init__(
        self, name: StreamName, archive: Archive, stored: StoredStream | None, feed: NodeFeed | None
    ) -> None:
        self.name = name
        self.text = intern(str(name))
        """The name as text, which all viewers share."""
        self.number = 0
        """Its position among the streams of the query."""
        self.stored = stored
        self.feed = feed
        self._fed: FedStream | None = None
        self.pending: Item | None = None
        self._ready: deque[Item] | None = None
        """Read and filtered, but not returned yet."""
        self._given = _BEGIN
        self.lines = LineAssembler(_BEGIN)
        self._archive = archive
        self.form = FrameForm.WHOLE
        """How stored frames are read, if all of their text is wanted."""
        self._start = _FROM_BEGIN
        self._reported_gaps: dict[tuple[Position, GapCause], int] | None = None
        """The size of each gap as last reported."""
        self._last_reported = False
        self._limit = _NO_END
        """Text from this offset on is another view's."""
        self._ragged = False
        """True while the position may be within a line; the rest of that line is skipped."""

    @property
    def fed(self) -> FedStream | None:
        """What its node reports of it, or None."""
        if self._fed is None and self.feed is not None:
            self._fed = self.feed.streams.get((self.name.kind, self.name.source))
        return self._fed

    @property
    def labelled(self) -> bool:
        """True if each line begins with the number of its task."""
        fed = self.fed
        if fed is not None and fed.labelled:
            return True
        if self.stored is None or not self.stored.chunks:
            return False
        # All chunks of a stream agree, except those of a node that lost its spool.
        first, last = self.stored.chunks[0], self.stored.chunks[-1]
        return first.index.labelled or last.index.labelled

    def is_torn(self, at: Position) -> bool:
        """True if the text there may be the rest of a line."""
        return any(each.at.offset == at.offset for each in self._gaps())

    @property
    def end(self) -> Position:
        """The known end."""
        fed, stored = self.fed, self.stored
        if stored is None:
            return fed.end if fed else _BEGIN
        return max(fed.end, stored.end) if fed else stored.end

    @property
    def is_over(self) -> bool:
        """True if nothing will be added: the store has its last chunk, or the node reports so."""
        if self.stored is not None and self.stored.last:
            return True
        return self.feed is not None and self.feed.over and self.fed is not None

    @property
    def is_fetched(self) -> bool:
        """True if its next text must be fetched from its node or the store."""
        offset, fed = self.lines.expected, self.fed
        return offset < self.end.offset and not (fed is not None and fed.has(offset))

    @property
    def is_moved(self) -> bool:
        """True if the node no longer has unread text of it: the store has it by now."""
        fed = self.fed
        return fed is not None and self.lines.expected < fed.stored_offset

    @property
    def has_gaps(self) -> bool:
        """True if it has a known gap."""
        return bool(self._gaps())

    @property
    def is_read(self) -> bool:
        """True if everything up to its end was read."""
        return self.lines.expected >= self.end.offset

    @property
    def position(self) -> Position:
        """The caller's position: behind what was returned."""
        coming = self.pending or (self._ready[0] if self._ready else None)
        # A gap may be before lines that were returned.
        return self.lines.at if coming is None else max(coming.at, self._given)

    def give(self) -> Item:
        """Return the pending item and advance the position."""
        item, self.pending = self.pending, None
        assert item is not None
        # The end of a passed frame may be within a line.
        if not isinstance(item, Gap | PassedFrame):
            self._given = item.end
        return item

    def begin(self, start: ViewStart) -> None:
        """Go close before the first line that fits, without reading the text before."""
        self._start = start
        self._given = start.at or Position()
        if start.at is not None:
            self.lines = LineAssembler(start.at)
            return
        fed = self.fed
        if start.line and fed is not None and fed.ring and fed.ring[0].at.line < start.line:
            # The ring buffer mostly has the last lines of a running job.
            self._begin_at(fed.ring[0].at)
            return
        before: Position | None = None
        for chunk in self.stored.chunks if self.stored else ():
            for placed in chunk.index.placed():
                if (
                    placed.end.line >= start.line
                    and placed.end.offset > start.offset
                    and placed.times_ms[1] >= start.time_ms
                ):
                    self._begin_at_or_lost(before or placed.begin)
                    return
                before = placed.begin
        if before is not None:
            self._begin_at_or_lost(before)

    def _begin_at_or_lost(self, at: Position) -> None:
        """Begin there, or at a lost range before it. The time of a lost range is unknown."""
        start = self._start
        lost = [
            each.begin
            for each in (self.stored.lost if self.stored else ())
            if each.end.offset > start.offset and each.end.line >= start.line
        ]
        if lost and min(lost) < at and not start.time_ms:
            self.lines = LineAssembler(min(lost))
        else:
            self._begin_at(at)

    def _begin_at(self, at: Position) -> None:
        self.lines = LineAssembler(at)
        self._ragged = at.offset > 0

    def begin_again(self, start: ViewStart) -> None:
        """Read again from a position, as if nothing after it had been read."""
        self.pending, self._ragged, self._last_reported = None, False, False
        self._ready = None
        self.begin(start)
        if self._reported_gaps:
            begun = start.at or Position()
            earlier = {key: size for key, size in self._reported_gaps.items() if key[0] < begun}
            self._reported_gaps = earlier or None

    def can_leave_to(self, other: StreamView) -> bool:
        """True if the other view of the stream has read and reported at least as much."""
        reported, own = other._reported_gaps or {}, self._reported_gaps or {}
        return (
            self.lines.expected <= other.lines.expected
            and self._ragged >= other._ragged
            and self._last_reported <= other._last_reported
            and all(reported.get(key, -1) >= lost_bytes for key, lost_bytes in own.items())
        )

    def leave_to(self, other: StreamView) -> bool:
        """Read only up to where the other view of the stream is, and report what it has reported.

        Returns True if there is text to read.
        """
        self._limit = other.lines.expected
        self._last_reported = self._last_reported or not other._last_reported
        reported = other._reported_gaps or {}
        for gap in self._gaps():
            key, lost_bytes = (gap.at, gap.cause), gap.lost_bytes or 0
            if reported.get(key, -1) < lost_bytes:
                self._reported_gaps = self._reported_gaps or {}
                self._reported_gaps[key] = lost_bytes
        return self.lines.expected < self._limit

    def filtered(self, end: int, item_filter: ItemFilter | None) -> AsyncGenerator[Item]:
        """Lines and gaps up to an offset, filtered."""
        if item_filter is None or not item_filter.works_on(self):
            return self.items(end)
        return self._filtered(end, item_filter)

    async def _filtered(self, end: int, item_filter: ItemFilter) -> AsyncGenerator[Item]:
        """In growing batches."""
        # A filter needs text, and each line's own time.
        self.form = FrameForm.READS
        async with aclosing(self.items(end)) as items:
            most_bytes = _FIRST_BATCH_BYTES
            batch: list[Lines | Gap] = []
            size = 0
            async for each in items:
                assert not isinstance(each, PassedFrame)
                batch.append(each)
                size += len(each.text) if isinstance(each, Lines) else 0
                if size < most_bytes and len(batch) < _MOST_BATCH:
                    continue
                for ready in self._each_ready(await item_filter.filtered(self, batch)):
                    yield ready
                batch, size, most_bytes = [], 0, min(2 * most_bytes, _MOST_BATCH_BYTES)
            for ready in self._each_ready(await item_filter.filtered(self, batch)):
                yield ready

    def _each_ready(self, items: list[Item]) -> Iterator[Item]:
        """Each of them; the position is before those that were not returned yet."""
        self._ready = ready = deque(items)
        while ready:
            yield ready.popleft()
        self._ready = None

    async def items(self, end: int) -> AsyncGenerator[ReadItem]:
        """Lines and gaps up to an offset, as far as they are available."""
        end = min(end, self._wanted_end(), self._limit)
        # A gap at the current position comes before the text after it, also at the start.
        for missing in self._missing_here():
            yield missing
        while (begin := self.lines.expected) < end:
            # Mostly the ring has it: one line of a running job, for each of its viewers.
            for piece in self._in_ring():
                for item in self._items_of(piece):
                    yield item
            if self.lines.expected == begin:
                async with aclosing(self._items_elsewhere(end)) as items:
                    async for item in items:
                        yield item
                if self.lines.expected == begin:
                    break
        for gap in self._new_gaps():
            yield gap

    async def _items_elsewhere(self, end: int) -> AsyncGenerator[ReadItem]:
        """Those from the store or the node, or the gap in place of what neither has."""
        found = False
        async with aclosing(self._elsewhere(end)) as pieces:
            async for piece in pieces:
                found = True
                for item in self._items_of(piece):
                    yield item
        for each in () if found else self._pass_lost() or self._pass_hole(end):
            yield each

    def _items_of(self, piece: Piece | PackedFrame) -> Iterator[ReadItem]:
        if isinstance(piece, PackedFrame):
            yield PassedFrame(piece, self.lines.pass_frame(piece))
            return
        if piece.end_offset > self._limit:
            if piece.at.offset >= self._limit:
                return
            piece = piece.up_to(self._limit)
        whole = self._mended(piece) if self._ragged else piece
        for part in self._between_gaps(whole):
            yield from self._taken(part)

    def _taken(self, part: Piece) -> Iterator[Lines | Gap]:
        for lines in self.lines.all_lines(part):
            if self._start.fits(lines):
                yield self._trimmed(lines)
        yield from self._missing_here()

    def _missing_here(self) -> Iterator[Lines | Gap]:
        """A line that a gap broke, and the gap."""
        broken = self._broken_line()
        if broken is not None:
            yield broken
        yield from self._new_gaps()

    def _between_gaps(self, piece: Piece) -> Iterator[Piece]:
        """Split the piece at gaps: text before and after a gap does not join."""
        for offset in sorted({each.at.offset for each in self._gaps()}):
            if piece.at.offset < offset < piece.end.offset:
                size = offset - piece.at.offset
                yield Piece(piece.at, piece.time_ms, piece.late, piece.text[:size])
                piece = piece.starting_at(offset)
        yield piece

    def _broken_line(self) -> Lines | None:
        """The beginning of a line without its end."""
        at = self.lines.expected
        if all(each.at.offset != at for each in self._gaps()):
            return None
        rest = self._rest()
        if rest is None:
            return None
        self.lines = LineAssembler(rest.end, self.lines.last_ms)
        return replace(rest, count=0)

    def _rest(self) -> Lines | None:
        """The rest of an ended line, as a line."""
        rest = self.lines.unfinished(self.lines.last_ms)
        return None if rest is None else replace(rest, unfinished=False, count=1)

    def _pass_lost(self) -> list[Lines | Gap]:
        """Skip a chunk that is known to be lost. The rest of its first line is shown."""
        begun = self.lines.expected
        lost = self.stored.lost_at(begun) if self.stored else None
        if lost is None:
            return []
        rest = self._rest()
        time_ms = self.lines.last_ms
        cause = GapCause.TAMPERED if lost.tampered else GapCause.UNREADABLE
        gap = Gap(Position(begun, self.lines.at.line), cause, lost.end.offset - begun, time_ms)
        self.lines = LineAssembler(lost.end, time_ms)
        self._ragged = False
        return [gap] if rest is None else [replace(rest, count=0), gap]

    def _pass_hole(self, end: int) -> list[Lines | Gap]:
        """Skip what the store should have: an object was damaged or removed."""
        if self.stored is None or self.stored.objects:
            return []
        begun = self.lines.expected
        for chunk in self.stored.chunks:
            if chunk.index.frames and begun < chunk.index.offset < end:
                at = Position(begun, self.lines.at.line)
                time_ms = next(chunk.index.placed()).times_ms[0]
                self._begin_at(chunk.index.begin)
                return [Gap(at, GapCause.UNREADABLE, chunk.index.offset - begun, time_ms)]
        return []

    def _wanted_end(self) -> int:
        """The begin of the first stored frame after `until_ms`; unlimited if unknown."""
        until_ms = self._start.until_ms
        if until_ms is None or self.stored is None:
            return _NO_END
        for chunk in self.stored.chunks:
            for placed in chunk.index.placed():
                if placed.times_ms[0] > until_ms:
                    return placed.begin.offset
        return _NO_END

    def last_line(self) -> Lines | None:
        """The last line of an ended stream if it has no line feed; returned once."""
        if self._last_reported or not (self.is_over and self.is_read):
            return None
        self._last_reported = True
        rest = self._rest()
        if rest is not None:
            # A cursor from here on is behind it.
            self.lines = LineAssembler(rest.end, self.lines.last_ms)
        return rest

    async def bytes_from(self, begin: int, end: int) -> AsyncGenerator[bytes]:
        """The exact bytes of a range, as far as they are available. Raises `DataUnavailable`."""
        at = begin
        while at < end:
            found = False
            async with aclosing(self._bytes(at, end)) as texts:
                async for text in texts:
                    found = True
                    at += len(text)
                    yield text
            if not found:
                lost = self.stored.lost_at(at) if self.stored else None
                if lost is not None and lost.tampered:
                    raise DataUnavailable(
                        f"{self.name} can't be had whole: from byte {at} on it was changed or "
                        "removed in the object store since it was sealed.",
                        hint="`lattice logs` shows what is left; tell your administrators.",
                    )
                return

    async def _bytes(self, at: int, end: int) -> AsyncGenerator[bytes]:
        fed = self.fed
        is_stored = self.stored is not None and at < self.stored.end.offset
        if self.stored is not None and is_stored and not (fed is not None and fed.pieces(at)):
            async with aclosing(self._archive.texts(self.stored, at, end)) as texts:
                async for text in texts:
                    yield text
            return
        self.lines = LineAssembler(Position(at, 0))
        pieces = list(self._in_ring()) or [each async for each in self._elsewhere(end)]
        for piece in pieces:
            assert isinstance(piece, Piece)
            text = piece.starting_at(at).text[: end - at]
            at += len(text)
            yield text

    def _mended(self, piece: Piece) -> Piece:
        """The piece without the rest of a line that was not read from its beginning."""
        feed = piece.text.find(b"\n")
        rest = piece.starting_at(piece.at.offset + feed + 1) if feed >= 0 else piece
        if feed < 0:
            self.lines = LineAssembler(piece.end)
            return Piece(piece.end, piece.time_ms, piece.late, b"")
        self._ragged = False
        self.lines = LineAssembler(rest.at)
        return rest

    def _trimmed(self, lines: Lines) -> Lines:
        """The lines without those before the start."""
        skip = self._start.line - lines.at.line
        if skip <= 0 or lines.cut:
            return lines
        begin = 0
        for _ in range(skip):
            begin = lines.text.index(b"\n", begin) + 1
        at = lines.at.past(lines.text[:begin])
        return Lines(
            at, lines.end, lines.time_ms, lines.late, lines.text[begin:], lines.count - skip
        )

    def _form_of(self, placed: PlacedFrame) -> FrameForm:
        """How to read a stored frame: piece by piece if a part of it may not be wanted."""
        start, (first_ms, last_ms) = self._start, placed.times_ms
        begin, end = placed.begin, placed.end.offset
        is_wanted = (
            begin.line >= start.line
            and begin.offset >= start.offset
            and first_ms >= start.time_ms
            and (start.until_ms is None or last_ms <= start.until_ms)
        )
        if (
            self._ragged
            or not is_wanted
            or not placed.frame.is_in_order
            or end > self._limit
            or any(begin.offset <= each.at.offset <= end for each in self._gaps())
        ):
            return FrameForm.READS
        if self.form is FrameForm.PACKED and not (placed.frame.lines and self.lines.can_pass):
            return FrameForm.WHOLE
        return self.form

    def _in_ring(self) -> Iterator[Piece | PackedFrame]:
        """The next text, if its node pushed it just now."""
        fed, offset = self.fed, self.lines.expected
        if fed is None:
            return
        for each in fed.pieces(offset):
            yield each if isinstance(each, Piece) else self._fed_frame(fed, each, offset)

    async def _elsewhere(self, end: int) -> AsyncGenerator[Piece | PackedFrame]:
        """The next text from the store, or else from its node."""
        offset, fed = self.lines.expected, self.fed
        if self.stored is not None and offset < self.stored.end.offset:
            pieces_of = self._archive.pieces
            async with aclosing(pieces_of(self.stored, offset, end, self._form_of)) as stored:
                async for each in stored:
                    yield each
        elif self.feed is not None and fed is not None and offset < fed.end.offset:
            try:
                fetched = await self.feed.fetch((self.name.kind, self.name.source), offset)
            except (Gone, Unavailable):
                return
            for piece in fetched:
                yield piece

    def _fed_frame(self, fed: FedStream, frame: PackedFrame, offset: int) -> Piece | PackedFrame:
        """A frame of the ring as it is, if its text is wanted as it is."""
        is_whole = offset <= frame.at.offset
        if is_whole and self._form_of(frame.placed) is FrameForm.PACKED:
            return frame
        return fed.expand(frame).starting_at(offset)

    def _gaps(self) -> list[Gap]:
        known = list(self.stored.gaps) if self.stored else []
        fed = self.fed
        if fed is not None:
            known += fed.gaps
        return known

    def _new_gaps(self) -> list[Gap]:
        known = self._gaps()
        if not known:
            return []
        reported = self._reported_gaps = self._reported_gaps or {}
        found = []
        # If a gap grew, the largest is the newest: report only that one again.
        for gap in sorted(known, key=lambda each: (each.at, -(each.lost_bytes or 0))):
            key, lost_bytes = (gap.at, gap.cause), gap.lost_bytes or 0
            if gap.at.offset > self.lines.expected or reported.get(key, -1) >= lost_bytes:
                continue
            reported[key] = lost_bytes
            if self._start.covers(gap):
                found.append(gap)
        return found


def ranked(streams: Iterable[StreamView]) -> bool:
    """True if the writer of every line is known."""
    return all(each.name.source.task is not None or each.labelled for each in streams)
