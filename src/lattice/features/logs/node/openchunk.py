"""The open chunk of one stream, on disk as soon as its text is read.

- open.frames: compressed frames.
- open.index: their entries, and gaps, one JSON line each.
- open.tail, open.tail2: text that is in no frame yet, in records with the time of reading.

Frames and records of sensitive jobs are sealed, one by one (`stream_seal`).

All text goes through a tail, so it is on disk before anybody gets it and before it is compressed.
The tails take turns: while the text of one is compressed, the other takes new text. A frame has
whole records, never a part of one.

A process can be killed between any two writes (each has a failpoint), and recovers from the files
alone. A frame counts once it has an entry. A record of a tail counts if it begins at or after the
end of the frames. Only a power cut leaves half a record. Recovery stops at such a record, and the
text is read again from the job's file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
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
    expand,
    pack_marks,
    pieces_of,
)
from lattice.domain.logs import LATEST_MS, Gap, GapCause, Piece, Position
from lattice.features.logs.node.compressor import StartCompression, compress_now
from lattice.features.logs.node.durable import append
from lattice.features.logs.node.stream_seal import StreamSeal
from lattice.features.logs.node.tail import MOST_AT_ONCE

_RECORD = struct.Struct("<QQIIB")
"""A record of a tail: offset, time in ms, length and CRC-32 as written, late."""
_TAILS = ("tail", "tail2")


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
    """Text that is in no frame yet, with the time of reading."""

    text: bytes
    lines: int
    time_ms: int
    late: bool


@dataclass(frozen=True, slots=True)
class _StartedFrame:
    """A frame that is being compressed. A tail has its text until the frame is written."""

    pieces: list[_Piece]
    stored: Future[bytes]

    def entry(self) -> Frame:
        """The frame, as the index describes it. Waits for the compression."""
        marks, size, lines = [], 0, 0
        for piece in self.pieces:
            size += len(piece.text)
            lines += piece.lines
            marks.append((size, piece.time_ms))
        late = self.pieces[0].late
        return Frame(len(self.stored.result()), size, lines, pack_marks(marks), late)


class OpenChunk:
    """Used by one thread."""

    def __init__(self, folder: Path, begin: Position, seal: StreamSeal) -> None:
        """Continues with the files in the folder, if they begin at `begin`."""
        self._seal = seal
        names = ("frames", "index", *_TAILS)
        self._paths = {name: folder / f"open.{name}" for name in names}
        self.begin = begin
        self.end = begin
        """The position after the last byte."""
        self.frames: list[Frame] = []
        self.gaps: list[Gap] = []
        self.began_ms: int | None = None
        self._pieces: list[_Piece] = []
        self._pending_bytes = 0
        """The size of the pieces."""
        self._started: _StartedFrame | None = None
        self._frames_end = begin
        self.stored_bytes = 0
        """The size of its frames."""
        self._digest = hashlib.sha256()
        self._recover_frames()
        self._files: dict[str, BinaryIO] = {
            name: path.open("ab", buffering=0) for name, path in self._paths.items()
        }
        self._tails = deque(self._files[name] for name in _TAILS)
        """The first one takes new text; the other has the text that is being compressed."""
        self._recover_tails()

    @property
    def sha256(self) -> str:
        """The digest of the frames."""
        return self._digest.hexdigest()

    @property
    def is_full(self) -> bool:
        """True if the text that is in no frame yet makes a good frame."""
        return self._pending_bytes >= MOST_AT_ONCE

    def add(
        self,
        text: bytes,
        time_ms: int,
        *,
        late: bool = False,
        start: StartCompression = compress_now,
    ) -> None:
        """Keep text. Raises `OSError` if the disk is full; `end` shows what is kept."""
        self._begin_at(time_ms)
        for begin in range(0, len(text), FRAME_BYTES):
            part = text[begin : begin + FRAME_BYTES]
            if not self._fits(len(part), late=late):
                self.start_frame(start)
            offset = self.end.offset
            written = self._seal.text(part, offset, time_ms, late=late)
            record = _RECORD.pack(offset, time_ms, len(written), zlib.crc32(written), late)
            append(self._tails[0], record, written)
            self._take(part, time_ms, late=late)
            failpoint("spool.tail.written")

    def _fits(self, size: int, *, late: bool) -> bool:
        """True if the text may be in one frame with the text before it."""
        if not self._pieces:
            return size <= FRAME_BYTES
        return self._pending_bytes + size <= FRAME_BYTES and self._pieces[-1].late == late

    def _take(self, text: bytes, time_ms: int, *, late: bool) -> None:
        lines = text.count(b"\n")
        self._pieces.append(_Piece(text, lines, time_ms, late))
        self._pending_bytes += len(text)
        self.end = Position(self.end.offset + len(text), self.end.line + lines)

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
        """Compress and write all text that is in no frame yet."""
        self.start_frame(compress_now)
        self.write_frame()

    def start_frame(self, start: StartCompression) -> Future[bytes] | None:
        """Begin to compress the text that is in no frame yet. Writes the frame before it.

        Returns the frame if all of it was read at one moment.
        """
        self.write_frame()
        if not self._pieces:
            return None
        texts = [each.text for each in self._pieces]
        text = texts[0] if len(texts) == 1 else b"".join(texts)
        stored = start(text, sensitive=self._seal.is_sealed)
        started = self._started = _StartedFrame(self._pieces, stored)
        self._pieces, self._pending_bytes = [], 0
        self._tails.rotate()
        if started.stored.done():
            self.write_frame()
        return started.stored if len(texts) == 1 else None

    def wait_compressed(self) -> None:
        """Return when `write_frame` need not wait."""
        if self._started is not None:
            self._started.stored.result()

    def write_frame(self) -> None:
        """Write the frame that is being compressed, if there is one. Waits for it."""
        started = self._started
        if started is None:
            return
        stored, frame = started.stored.result(), started.entry()
        offset = self._frames_end.offset
        append(self._files["frames"], self._seal.frame(stored, offset, frame))
        failpoint("spool.frame.written")
        try:
            append(self._files["index"], _line(_FrameEntry(offset, frame)))
        except OSError:
            self._files["frames"].truncate(self._written_bytes)
            raise
        failpoint("spool.frame.indexed")
        self._count_frame(frame, stored)
        self._started = None
        self._tails[-1].truncate(0)
        failpoint("spool.tail.cleared")

    def _count_frame(self, frame: Frame, stored: bytes) -> None:
        self.frames.append(frame)
        self._frames_end = _after(self._frames_end, frame)
        self.stored_bytes += len(stored)
        self._digest.update(stored)

    @property
    def _written_bytes(self) -> int:
        """The size of its frames on disk."""
        return self.stored_bytes + len(self.frames) * self._seal.part_bytes

    def read_frames(self) -> bytes:
        """All frames, one after the other. Raises `BadChunk` if one does not open."""
        return b"".join(self._read(each, at, begin) for each, at, begin in self._placed())

    def copy_frames(self, target: int) -> None:
        """Write all frames, one after the other, to a descriptor. They need no memory here."""
        with self._paths["frames"].open("rb", buffering=0) as source:
            at = 0
            while at < self.stored_bytes:
                copied = os.sendfile(target, source.fileno(), at, self.stored_bytes - at)
                if not copied:
                    raise OSError(errno.EIO, "the frames on disk are cut")
                at += copied

    def pieces(self, offset: int) -> list[Piece]:
        """The text at an offset, up to the end of its frame or the tail; empty if not here."""
        found = self.stored_frame(offset)
        if found is None:
            return pieces_from(self._pending(), offset)
        placed, stored = found
        return pieces_from(pieces_of(placed, expand(stored, placed.frame)), offset)

    def stored_frame(self, offset: int) -> tuple[PlacedFrame, bytes] | None:
        """The frame with the text at an offset; None if that is in no frame."""
        stored_at = 0
        for frame, at, written_at in self._placed():
            if at.offset <= offset < at.offset + frame.plain_bytes:
                stored = self._read(frame, at, written_at)
                return PlacedFrame(frame, at, stored_at), stored
            stored_at += frame.stored_bytes
        return None

    def _placed(self) -> Iterator[tuple[Frame, Position, int]]:
        """Each frame, where its text begins, and where it is in the file."""
        at, written_at = self.begin, 0
        for frame in self.frames:
            yield frame, at, written_at
            at = _after(at, frame)
            written_at += frame.stored_bytes + self._seal.part_bytes

    def _read(self, frame: Frame, at: Position, written_at: int) -> bytes:
        with self._paths["frames"].open("rb", buffering=0) as file:
            size = frame.stored_bytes + self._seal.part_bytes
            written = os.pread(file.fileno(), size, written_at)
        return self._seal.open_frame(written, at.offset, frame)

    def _pending(self) -> Iterator[Piece]:
        """The text that is in no frame yet."""
        at = self._frames_end
        started = self._started.pieces if self._started else ()
        for each in chain(started, self._pieces):
            piece = Piece(at, each.time_ms, each.late, each.text, each.lines)
            yield piece
            at = piece.end

    def restart(self, begin: Position) -> None:
        """Clear everything and begin at `begin`."""
        # The index first: frames without entries don't count.
        for name in ("index", "frames", *_TAILS):
            self._files[name].truncate(0)
            failpoint("spool.open.cleared")
        self.begin = self.end = self._frames_end = begin
        self.frames.clear()
        self.gaps.clear()
        self._pieces, self._pending_bytes, self._started = [], 0, None
        self.stored_bytes = 0
        self._digest = hashlib.sha256()
        self.began_ms = None

    def close(self) -> None:
        """Close the files; their content stays."""
        for file in self._files.values():
            file.close()

    def _begin_at(self, time_ms: int) -> None:
        if self.began_ms is None:
            self.began_ms = time_ms

    def _recover_frames(self) -> None:
        data = _content(self._paths["frames"])
        valid_index, valid_frames = b"", b""
        written_at = 0
        for line, entry in _entries(_content(self._paths["index"])):
            if isinstance(entry, _GapEntry):
                if entry.offset < self.begin.offset:
                    continue
                at = Position(entry.offset, entry.line)
                self.gaps.append(Gap(at, entry.cause, entry.lost_bytes, entry.time_ms))
                self._begin_at(entry.time_ms)
            else:
                size = entry.frame.stored_bytes + self._seal.part_bytes
                written = data[written_at : written_at + size]
                written_at += len(written)
                if entry.offset < self.begin.offset:
                    # Of a closed chunk; the process was killed before it cleared these files.
                    continue
                if len(written) != size:
                    break
                try:
                    check_marks(entry.frame)
                    stored = self._seal.open_frame(written, entry.offset, entry.frame)
                    text = expand(stored, entry.frame)
                except BadChunk:
                    break
                if entry.offset != self._frames_end.offset:
                    break
                if entry.frame.lines != text.count(b"\n"):
                    break
                valid_frames += written
                self._count_frame(entry.frame, stored)
                self._begin_at(entry.frame.marks[1])
            valid_index += line
        self._paths["index"].write_bytes(valid_index)
        self._paths["frames"].write_bytes(valid_frames)
        self.end = self._frames_end

    def _recover_tails(self) -> None:
        """Take the text of the tails. That of the older one makes a frame if there are two."""
        contents = {name: _content(self._paths[name]) for name in _TAILS}
        for name in sorted(_TAILS, key=lambda each: _first_offset(contents[each])):
            if not contents[name]:
                continue
            self.make_frame()
            if self._tails[0] is not self._files[name]:
                self._tails.rotate()
            self._recover_tail(self._paths[name], contents[name])

    def _recover_tail(self, path: Path, data: bytes) -> None:
        valid, begin = b"", 0
        while begin + _RECORD.size <= len(data):
            offset, time_ms, size, crc, late = _RECORD.unpack_from(data, begin)
            record = data[begin : begin + _RECORD.size + size]
            written = record[_RECORD.size :]
            if not size or len(written) != size or zlib.crc32(written) != crc:
                break
            if offset > self.end.offset or time_ms > LATEST_MS:
                break
            begin += len(record)
            if offset < self.end.offset:
                # Its frame was made; the process was killed before it cleared the tail.
                continue
            try:
                text = self._seal.open_text(written, offset, time_ms, late=bool(late))
            except BadChunk:
                break
            if not text or not self._fits(len(text), late=bool(late)):
                break
            self._take(text, time_ms, late=bool(late))
            self._begin_at(time_ms)
            valid += record
        path.write_bytes(valid)


def _after(begin: Position, frame: Frame) -> Position:
    return Position(begin.offset + frame.plain_bytes, begin.line + frame.lines)


def _first_offset(tail: bytes) -> int:
    """The offset of its first record; 0 if it has none."""
    found: int = _RECORD.unpack_from(tail)[0] if len(tail) >= _RECORD.size else 0
    return found


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
