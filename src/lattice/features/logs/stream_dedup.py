"""Removes repeated records of a log stream that spans several connections. No I/O.

A cursor belongs to the record of some event, so later records come again on the next connection.
Each line has its number in its stream; lines below the next expected number are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from lattice.features.logs.blocks import LinesFrame
from lattice.features.logs.model import LogBlock, LogGap, LogNote, LogRecord, NoteKind

AnyRecord: TypeAlias = LogRecord | LinesFrame
"""A record; its lines may not be decoded yet."""
_NEWLINE = "\n"
_BROKEN = "line"


class _ReadPosition:
    """How far one stream was read."""

    __slots__ = ("gaps", "line")

    def __init__(self) -> None:
        self.line = 0
        self.gaps: set[tuple[int, str]] = set()

    def is_new(self, offset: int, what: str) -> bool:
        """True the first time for this offset and kind."""
        new = (offset, what) not in self.gaps
        self.gaps.add((offset, what))
        return new


class LogDeduplicator:
    """Returns each line once, and a note for each lost connection."""

    def __init__(self, *, heartbeats: bool = False) -> None:
        self._heartbeats = heartbeats
        self._positions: dict[tuple[str, str, str], _ReadPosition] = {}

    def record(self, record: AnyRecord) -> Iterable[AnyRecord]:
        """The record, or the new part of it."""
        if isinstance(record, LogNote):
            return self._note(record)
        key = (record.node, record.stream.value, record.source)
        position = self._positions.get(key)
        if position is None:
            position = self._positions[key] = _ReadPosition()
        if isinstance(record, LogGap):
            return self._gap(record, position)
        return self._block(record, position)

    def _note(self, note: LogNote) -> Iterable[LogRecord]:
        if note.kind is NoteKind.ATTEMPT_ENDED:
            # The next attempt numbers its lines from the beginning.
            self._positions.clear()
        if note.kind is NoteKind.ALIVE and not self._heartbeats:
            return ()
        return (note,)

    @staticmethod
    def _gap(gap: LogGap, position: _ReadPosition) -> Iterable[LogRecord]:
        # Only an identical gap is dropped; a gap that grew is reported again.
        what = f"{gap.cause.value} {gap.lost_bytes}"
        return (gap,) if position.is_new(gap.offset, what) else ()

    @staticmethod
    def _block(
        block: LogBlock | LinesFrame, position: _ReadPosition
    ) -> Iterable[LogBlock | LinesFrame]:
        if block.unfinished:
            return () if block.seq < position.line else (block,)
        if not block.count:
            # A gap cut the line; the line after the gap has the same number.
            return (block,) if position.is_new(block.offset, _BROKEN) else ()
        known = position.line - block.seq
        position.line = max(position.line, block.seq + block.count)
        if known <= 0:
            return (block,)
        if known >= block.count:
            return ()
        return (block.after(known) if isinstance(block, LinesFrame) else _after(block, known),)

    def alive(self, now: datetime) -> Iterable[LogRecord]:
        """A sign of life of the server; the node may still be silent."""
        if not self._heartbeats:
            return ()
        return (LogNote(kind=NoteKind.ALIVE, time=now, words="the server answers"),)

    def lost(self, why: str, now: datetime) -> Iterable[LogRecord]:
        """The connection to the server is lost."""
        return (LogNote(kind=NoteKind.DISCONNECTED, time=now, words=why),)

    def back(self, away_s: float, now: datetime) -> Iterable[LogRecord]:
        """The connection is back; lines written meanwhile follow."""
        return (LogNote(kind=NoteKind.RECONNECTED, time=now, seconds=away_s, lines=0),)


def _after(block: LogBlock, known: int) -> LogBlock:
    """The block without its first lines."""
    at = 0
    for _ in range(known):
        at = block.text.index(_NEWLINE, at) + 1
    skipped = block.text[:at]
    return replace(
        block,
        seq=block.seq + known,
        count=block.count - known,
        offset=block.offset + len(skipped.encode("utf-8", "surrogatepass")),
        text=block.text[at:],
    )
