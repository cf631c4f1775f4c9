"""The open chunk of one stream, on disk as soon as its text is read.

- open.frames: compressed frames.
- open.index: their entries, and gaps, one JSON line each.
- open.tail: plain text that fills no frame yet, in records with the time of reading.

A process can be killed between any two writes (each has a failpoint), and recovers from the files
alone. A frame counts once it has an entry. A record of the tail counts if it begins at or after the
end of the frames. Only a power cut leaves half a record. Recovery stops at such a record, and the
text is read again from the job's file.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from lattice.base.failpoints import failpoint
from lattice.domain.logchunk import (
    FRAME_BYTES,
    BadChunk,
    Frame,
    PlacedFrame,
    check_marks,
    compress,
    expand,
    pack_marks,
    pieces_of,
)
from lattice.domain.logs import LATEST_MS, Gap, GapCause, Piece, Position
from lattice.features.logs.node.durable import append

_RECORD = struct.Struct("<QQIIB")
"""A record of the tail: offset, time in ms, length, CRC-32 of the text, late."""


class _FrameEntry(msgspec.Struct, frozen=True, tag="frame"):
    offset: int
    frame: Frame


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _GapEntry(msgspec.Struct, frozen=True, tag="gap"):
    offset: _Count
    line: _Count
    cause: GapCause
    lost_bytes: _Count | None
    time_ms: Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]


_Entry = _FrameEntry | _GapEntry
_ENTRY: msgspec.json.Decoder[_Entry] = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text that fills no frame yet, with the time of reading."""

    text: bytes
    lines: int
    time_ms: int
    late: bool


class OpenChunk:
    """Used by one thread."""

    def __init__(self, folder: Path, begin: Position) -> None:
        """Continues with the files in the folder, if they begin at `begin`."""
        self._paths = {name: folder / f"open.{name}" for name in ("frames", "index", "tail")}
        self.begin = begin
        self.frames: list[Frame] = []
        self.gaps: list[Gap] = []
        self.began_ms: int | None = None
        self._pieces: list[_Piece] = []
        self._pending_bytes = self._pending_lines = 0
        self._frames_end = begin
        self.stored_bytes = 0
        """The size of its frames."""
        self._tail_bytes = 0
        self._digest = hashlib.sha256()
        self._recover()
        self._files: dict[str, BinaryIO] = {
            name: path.open("ab", buffering=0) for name, path in self._paths.items()
        }

    @property
    def end(self) -> Position:
        """The position after the last byte."""
        return Position(
            self._frames_end.offset + self._pending_bytes,
            self._frames_end.line + self._pending_lines,
        )

    @property
    def sha256(self) -> str:
        """The digest of the frames."""
        return self._digest.hexdigest()

    def add(self, text: bytes, time_ms: int, *, late: bool = False) -> None:
        """Keep text. Raises `OSError` if the disk is full; `end` shows what is kept."""
        if self._pieces and self._pieces[-1].late != late:
            self.make_frame()
        self._begin_at(time_ms)
        begin = 0
        while self._pending_bytes + len(text) - begin >= FRAME_BYTES:
            # A frame is filled exactly; only the remainder goes through the tail.
            part = text[begin : begin + FRAME_BYTES - self._pending_bytes]
            self._take(part, time_ms, late=late)
            try:
                self.make_frame()
            except OSError:
                self._give_back()
                raise
            begin += len(part)
        rest = text[begin:]
        if rest:
            record = _RECORD.pack(self.end.offset, time_ms, len(rest), zlib.crc32(rest), late)
            append(self._files["tail"], record + rest)
            self._tail_bytes += len(record) + len(rest)
            self._take(rest, time_ms, late=late)
            failpoint("spool.tail.written")

    def _take(self, text: bytes, time_ms: int, *, late: bool) -> None:
        lines = text.count(b"\n")
        self._pieces.append(_Piece(text, lines, time_ms, late))
        self._pending_bytes += len(text)
        self._pending_lines += lines

    def _give_back(self) -> None:
        piece = self._pieces.pop()
        self._pending_bytes -= len(piece.text)
        self._pending_lines -= piece.lines

    def add_gap(self, cause: GapCause, lost_bytes: int | None, time_ms: int) -> None:
        """Record a gap at the end; a repeated one counts once."""
        self.make_frame()
        gap = Gap(self.end, cause, lost_bytes, time_ms)
        if self.gaps and (self.gaps[-1].at, self.gaps[-1].cause) == (gap.at, gap.cause):
            return
        entry = _GapEntry(gap.at.offset, gap.at.line, cause, lost_bytes, time_ms)
        append(self._files["index"], _line(entry))
        failpoint("spool.gap.written")
        self.gaps.append(gap)
        self._begin_at(time_ms)

    def make_frame(self) -> None:
        """Compress the text that fills no frame yet."""
        if not self._pieces:
            return
        text = b"".join(each.text for each in self._pieces)
        end = self.end
        marks, size = [], 0
        for piece in self._pieces:
            size += len(piece.text)
            marks.append((size, piece.time_ms))
        stored = compress(text)
        late = self._pieces[0].late
        frame = Frame(len(stored), len(text), self._pending_lines, pack_marks(marks), late)
        append(self._files["frames"], stored)
        failpoint("spool.frame.written")
        try:
            append(self._files["index"], _line(_FrameEntry(self._frames_end.offset, frame)))
        except OSError:
            self._files["frames"].truncate(self.stored_bytes)
            raise
        failpoint("spool.frame.indexed")
        if self._tail_bytes:
            self._files["tail"].truncate(0)
            self._tail_bytes = 0
        failpoint("spool.tail.cleared")
        self.frames.append(frame)
        self._frames_end = end
        self.stored_bytes += len(stored)
        self._digest.update(stored)
        self._pieces.clear()
        self._pending_bytes = self._pending_lines = 0

    def stored_frames(self) -> bytes:
        """All frames, one after the other."""
        return self._paths["frames"].read_bytes()

    def pieces(self, offset: int) -> list[Piece]:
        """The text at an offset, up to the end of its frame or the tail; empty if not here."""
        at, stored_at = self.begin, 0
        for frame in self.frames:
            if at.offset <= offset < at.offset + frame.plain_bytes:
                with self._paths["frames"].open("rb") as file:
                    file.seek(stored_at)
                    text = expand(file.read(frame.stored_bytes), frame)
                return pieces_from(pieces_of(PlacedFrame(frame, at, stored_at), text), offset)
            at = Position(at.offset + frame.plain_bytes, at.line + frame.lines)
            stored_at += frame.stored_bytes
        return pieces_from(self._pending(), offset)

    def _pending(self) -> Iterator[Piece]:
        at = self._frames_end
        for each in self._pieces:
            yield Piece(at, each.time_ms, each.late, each.text)
            at = at.past(each.text)

    def restart(self, begin: Position) -> None:
        """Clear everything and begin at `begin`."""
        # The index first: frames without entries don't count.
        for name in ("index", "frames", "tail"):
            self._files[name].truncate(0)
            failpoint("spool.open.cleared")
        self.begin = self._frames_end = begin
        self.frames.clear()
        self.gaps.clear()
        self._pieces.clear()
        self._pending_bytes = self._pending_lines = 0
        self.stored_bytes = self._tail_bytes = 0
        self._digest = hashlib.sha256()
        self.began_ms = None

    def close(self) -> None:
        """Close the files; their content stays."""
        for file in self._files.values():
            file.close()

    def _begin_at(self, time_ms: int) -> None:
        if self.began_ms is None:
            self.began_ms = time_ms

    def _recover(self) -> None:
        data = _content(self._paths["frames"])
        valid_index, valid_frames = b"", b""
        stored_at = 0
        for line, entry in _entries(_content(self._paths["index"])):
            if isinstance(entry, _GapEntry):
                if entry.offset < self.begin.offset:
                    continue
                at = Position(entry.offset, entry.line)
                self.gaps.append(Gap(at, entry.cause, entry.lost_bytes, entry.time_ms))
                self._begin_at(entry.time_ms)
            else:
                stored = data[stored_at:][: entry.frame.stored_bytes]
                stored_at += len(stored)
                if entry.offset < self.begin.offset:
                    # Of a closed chunk; the process was killed before it cleared these files.
                    continue
                if len(stored) != entry.frame.stored_bytes:
                    break
                try:
                    check_marks(entry.frame)
                    text = expand(stored, entry.frame)
                except BadChunk:
                    break
                if entry.offset != self._frames_end.offset:
                    break
                if entry.frame.lines != text.count(b"\n"):
                    break
                valid_frames += stored
                self.frames.append(entry.frame)
                self._frames_end = self._frames_end.past(text)
                self.stored_bytes += len(stored)
                self._digest.update(stored)
                self._begin_at(entry.frame.marks[1])
            valid_index += line
        self._paths["index"].write_bytes(valid_index)
        self._paths["frames"].write_bytes(valid_frames)
        self._recover_tail()

    def _recover_tail(self) -> None:
        data = _content(self._paths["tail"])
        valid, begin, at = b"", 0, self._frames_end.offset
        while begin + _RECORD.size <= len(data):
            offset, time_ms, size, crc, late = _RECORD.unpack_from(data, begin)
            text = data[begin + _RECORD.size :][:size]
            if len(text) != size or zlib.crc32(text) != crc or offset > at:
                break
            if time_ms > LATEST_MS:
                break
            record = data[begin : begin + _RECORD.size + size]
            begin += len(record)
            if offset < at:
                # Its frame was made; the process was killed before it cleared the tail.
                continue
            self._take(text, time_ms, late=bool(late))
            self._begin_at(time_ms)
            valid += record
            at += size
        self._paths["tail"].write_bytes(valid)
        self._tail_bytes = len(valid)


def pieces_from(pieces: Iterable[Piece], offset: int) -> list[Piece]:
    """The pieces from an offset on."""
    return [each.starting_at(offset) for each in pieces if each.end_offset > offset >= 0]


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def _entries(content: bytes) -> Iterator[tuple[bytes, _Entry]]:
    for line in content.splitlines(keepends=True):
        try:
            yield line, _ENTRY.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return


def _line(entry: _Entry) -> bytes:
    return msgspec.json.encode(entry) + b"\n"
