"""One person's view of one stream.

It is read from the store as far as that goes, and from its node from there on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.logs import Gap, GapCause, Piece, Position, StreamName
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.fedstream import FedStream
from lattice.features.logs.service.feeds import Gone, NodeFeed
from lattice.features.logs.service.lines import LineAssembler, Lines
from lattice.features.logs.service.stored import StoredStream

_NO_END = 1 << 62
_FIRST_BATCH_BYTES = 64 * 1024
_MOST_BATCH_BYTES = 512 * 1024
_MOST_BATCH = 256
"""What is filtered together: a little at first, for whoever wants a few lines soon."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """What a filter left of some lines: runs with their ranks, or nothing."""

    at: Position
    end: Position
    time_ms: int
    runs: tuple[tuple[int | None, Lines], ...] = ()


Item: TypeAlias = Lines | Gap | Filtered


class ItemFilter(Protocol):
    """Takes lines of a stream apart, in workers."""

    def works_on(self, stream: StreamView) -> bool:
        """False if it would leave everything as it is."""

    async def filtered(self, stream: StreamView, items: list[Lines | Gap]) -> list[Item]:
        """In the same order."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin in a stream: after a place, or at the first line that fits."""

    at: Position | None = None
    line: int = 0
    offset: int = 0
    time_ms: int = 0
    until_ms: int | None = None
    """What was read later is not wanted."""

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


class StreamView:
    """One stream."""

    def __init__(
        self, name: StreamName, archive: Archive, stored: StoredStream | None, feed: NodeFeed | None
    ) -> None:
        self.name = name
        self.stored = stored
        self.feed = feed
        self.pending: Item | None = None
        self._ready: deque[Item] = deque()
        """Read and filtered, but not given out."""
        self._given = Position()
        self.lines = LineAssembler(Position())
        self._archive = archive
        self._start = Start()
        self._told_gaps: dict[tuple[Position, GapCause], int] = {}
        """How much was said to be missing there."""
        self._last_told = False
        self._ragged = False
        """True while it may stand in the middle of a line, which is left out."""

    @property
    def fed(self) -> FedStream | None:
        """What its node tells of it, if anything."""
        if self.feed is None:
            return None
        return self.feed.streams.get((self.name.kind, self.name.source))

    @property
    def labelled(self) -> bool:
        """True where each line has its task before it."""
        fed = self.fed
        if fed is not None and fed.labelled:
            return True
        if self.stored is None or not self.stored.chunks:
            return False
        # All of a stream say the same, but for those of a node that lost what it knew.
        first, last = self.stored.chunks[0], self.stored.chunks[-1]
        return first.index.labelled or last.index.labelled

    def is_torn(self, at: Position) -> bool:
        """True if what begins there may be the rest of a line."""
        return any(each.at.offset == at.offset for each in self._gaps())

    @property
    def end(self) -> Position:
        """As far as anyone knows it."""
        fed, stored = self.fed, self.stored
        return max(fed.end if fed else Position(), stored.end if stored else Position())

    @property
    def is_over(self) -> bool:
        """True if nothing will be added: the store has its last chunk, or its node says so."""
        if self.stored is not None and self.stored.last:
            return True
        return self.feed is not None and self.feed.over and self.fed is not None

    @property
    def has_gaps(self) -> bool:
        """True if something is known to be missing of it."""
        return bool(self._gaps())

    @property
    def is_read(self) -> bool:
        """True if everything up to its end was taken."""
        return self.lines.expected >= self.end.offset

    @property
    def place(self) -> Position:
        """Where it goes on for the caller: behind what was given out."""
        coming = self.pending or (self._ready[0] if self._ready else None)
        # A gap may lie before lines that were given out.
        return self.lines.at if coming is None else max(coming.at, self._given)

    def give(self) -> Item:
        """What is pending, from now on given out."""
        item, self.pending = self.pending, None
        assert item is not None
        if not isinstance(item, Gap):
            self._given = item.end
        return item

    def begin(self, start: Start) -> None:
        """Go to where the first line that fits may be, without reading what is before."""
        self._start = start
        self._given = start.at or Position()
        if start.at is not None:
            self.lines = LineAssembler(start.at)
            return
        fed = self.fed
        if start.line and fed is not None and fed.ring and fed.ring[0].at.line < start.line:
            # The last lines of a job that runs are mostly at hand.
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
        """There, or before it with what is lost. When that was read nobody knows."""
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

    def begin_again(self, start: Start) -> None:
        """Read once more from a place that was read, as if nothing after it had been."""
        self.pending, self._ragged, self._last_told = None, False, False
        self._ready.clear()
        self.begin(start)
        for at, cause in tuple(self._told_gaps):
            if at >= (start.at or Position()):
                del self._told_gaps[at, cause]

    async def filtered(self, end: int, item_filter: ItemFilter | None) -> AsyncGenerator[Item]:
        """Lines and gaps up to an offset, filtered: some at once, and ever more."""
        async with aclosing(self.items(end)) as items:
            if item_filter is None or not item_filter.works_on(self):
                async for item in items:
                    yield item
                return
            most_bytes = _FIRST_BATCH_BYTES
            batch: list[Lines | Gap] = []
            size = 0
            async for item in items:
                batch.append(item)
                size += len(item.text) if isinstance(item, Lines) else 0
                if size < most_bytes and len(batch) < _MOST_BATCH:
                    continue
                self._ready.extend(await item_filter.filtered(self, batch))
                batch, size, most_bytes = [], 0, min(2 * most_bytes, _MOST_BATCH_BYTES)
                while self._ready:
                    yield self._ready.popleft()
            self._ready.extend(await item_filter.filtered(self, batch))
            while self._ready:
                yield self._ready.popleft()

    async def items(self, end: int) -> AsyncGenerator[Lines | Gap]:
        """Lines and gaps up to an offset, as far as they can be had."""
        end = min(end, self._wanted_end())
        # What is missing right here comes before what follows it, also for who begins here.
        for item in self._missing_here():
            yield item
        while self.lines.expected < end:
            found = False
            async with aclosing(self._next(end)) as pieces:
                async for piece in pieces:
                    found = True
                    for item in self._items_of(piece):
                        yield item
            if not found:
                passed = self._pass_lost() or self._pass_hole(end)
                if not passed:
                    break
                for each in passed:
                    yield each
        for gap in self._new_gaps():
            yield gap

    def _items_of(self, piece: Piece) -> Iterator[Lines | Gap]:
        whole = self._mended(piece) if self._ragged else piece
        for part in self._between_gaps(whole):
            yield from self._taken(part)

    def _taken(self, part: Piece) -> Iterator[Lines | Gap]:
        lines = self.lines.take(part)
        if lines is not None and self._start.fits(lines):
            yield self._trimmed(lines)
        yield from self._missing_here()

    def _missing_here(self) -> Iterator[Lines | Gap]:
        """A line that a gap broke, and the gap."""
        broken = self._broken_line()
        if broken is not None:
            yield broken
        yield from self._new_gaps()

    def _between_gaps(self, piece: Piece) -> Iterator[Piece]:
        """The piece in parts: what is before a gap and what is after it are no neighbours."""
        for offset in sorted({each.at.offset for each in self._gaps()}):
            if piece.at.offset < offset < piece.end.offset:
                size = offset - piece.at.offset
                yield Piece(piece.at, piece.time_ms, piece.late, piece.text[:size])
                piece = piece.starting_at(offset)
        yield piece

    def _broken_line(self) -> Lines | None:
        """The beginning of a line whose end is missing."""
        at = self.lines.expected
        if all(each.at.offset != at for each in self._gaps()):
            return None
        rest = self._rest()
        if rest is None:
            return None
        self.lines = LineAssembler(rest.end, self.lines.last_ms)
        return replace(rest, count=0)

    def _rest(self) -> Lines | None:
        """What was read of a line that does not go on, as a line."""
        rest = self.lines.unfinished(self.lines.last_ms)
        return None if rest is None else replace(rest, unfinished=False, count=1)

    def _pass_lost(self) -> list[Lines | Gap]:
        """Over a chunk that is known to be lost. What is left of its first line is shown."""
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
        """Over what the store should have and has not: an object that was damaged or removed."""
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
        """Behind the last stored frame that begins in time; without end where that is not known."""
        until_ms = self._start.until_ms
        if until_ms is None or self.stored is None:
            return _NO_END
        for chunk in self.stored.chunks:
            for placed in chunk.index.placed():
                if placed.times_ms[0] > until_ms:
                    return placed.begin.offset
        return _NO_END

    def last_line(self) -> Lines | None:
        """The last line of a stream that is over and does not end in a line feed; told once."""
        if self._last_told or not (self.is_over and self.is_read):
            return None
        self._last_told = True
        rest = self._rest()
        if rest is not None:
            # Whoever goes on from here has had it.
            self.lines = LineAssembler(rest.end, self.lines.last_ms)
        return rest

    async def bytes_from(self, begin: int, end: int) -> AsyncGenerator[bytes]:
        """The exact bytes of a range, as far as they can be had. Raises `DataUnavailable`."""
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
        async for piece in self._next(end):
            text = piece.starting_at(at).text[: end - at]
            at += len(text)
            yield text

    def _mended(self, piece: Piece) -> Piece:
        """Without the rest of a line whose beginning was not read."""
        feed = piece.text.find(b"\n")
        rest = piece.starting_at(piece.at.offset + feed + 1) if feed >= 0 else piece
        if feed < 0:
            self.lines = LineAssembler(piece.end)
            return Piece(piece.end, piece.time_ms, piece.late, b"")
        self._ragged = False
        self.lines = LineAssembler(rest.at)
        return rest

    def _trimmed(self, lines: Lines) -> Lines:
        """Without the lines before the one that was asked for."""
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

    async def _next(self, end: int) -> AsyncGenerator[Piece]:
        offset = self.lines.expected
        fed = self.fed
        if fed is not None and (pieces := fed.pieces(offset)):
            for piece in pieces:
                yield piece
        elif self.stored is not None and offset < self.stored.end.offset:
            async with aclosing(self._archive.pieces(self.stored, offset, end)) as stored:
                async for piece in stored:
                    yield piece
        elif self.feed is not None and fed is not None and offset < fed.end.offset:
            try:
                fetched = await self.feed.fetch((self.name.kind, self.name.source), offset)
            except (Gone, Unavailable):
                return
            for piece in fetched:
                yield piece

    def _gaps(self) -> list[Gap]:
        known = list(self.stored.gaps) if self.stored else []
        if self.feed is not None:
            known += self.feed.gaps.get((self.name.kind, self.name.source), ())
        return known

    def _new_gaps(self) -> list[Gap]:
        found = []
        # Of one that grew while it was told of, the largest is the newest: told again, and alone.
        for gap in sorted(self._gaps(), key=lambda each: (each.at, -(each.lost_bytes or 0))):
            key, lost_bytes = (gap.at, gap.cause), gap.lost_bytes or 0
            if gap.at.offset > self.lines.expected or self._told_gaps.get(key, -1) >= lost_bytes:
                continue
            self._told_gaps[key] = lost_bytes
            if self._start.covers(gap):
                found.append(gap)
        return found


def ranked(streams: Iterable[StreamView]) -> bool:
    """True if the writer of every line is known."""
    return all(each.name.source.task is not None or each.labelled for each in streams)
