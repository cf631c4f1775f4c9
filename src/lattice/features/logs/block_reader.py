"""Reads the binary frames of `blocks`: the records of one connection. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from lattice.base.call import StreamFormat
from lattice.base.events import ALIVE, BadEvents, Event
from lattice.base.packed_text import BadPackedText, can_expand, expanded
from lattice.domain.logs import LATEST_MS, LogKind, Piece, Position
from lattice.features.logs.blocks import (
    BLOCK_HEAD,
    CONTINUED,
    FRAME_HEAD,
    LATE,
    MARK,
    MARK_COUNT,
    MEDIA_TYPE,
    PACKED_SIZES,
    UNFINISHED,
    ZSTD,
    LinesFrame,
    Marks,
)
from lattice.features.logs.lines import LineAssembler, Lines

LARGEST_FRAME_BYTES = 4 * 1024 * 1024
"""Far above what a server sends as one frame."""
LARGEST_TEXT_BYTES = 1024 * 1024
"""A stored frame has at most a quarter of this."""
_MOST_MARKS = 1024
_WITHOUT_BODY = {b"A": ALIVE, b"E": Event("end", b"", "")}


class _BlockHead(NamedTuple):
    number: int
    rank: int
    seq: int
    line_count: int
    offset: int
    time_ms: int
    flags: int
    cut: int


class BlockReader:
    """Takes pieces of any size and returns the events that are complete."""

    def __init__(self, limit_bytes: int = LARGEST_FRAME_BYTES, *, is_decoding: bool = True) -> None:
        """Without `is_decoding` the records of lines are `LinesFrame`."""
        self._limit_bytes = limit_bytes
        self._is_decoding = is_decoding
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = FRAME_HEAD.size
        self._streams: dict[int, tuple[str, LogKind, str]] = {}
        self._begun: dict[int, LineAssembler] = {}
        """Of each stream that continues with a frame of kind `Z`."""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that end in this piece, in order. Raises `BadEvents`."""
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes < self._needed_bytes:
            return
        data = b"".join(self._held) if len(self._held) > 1 else piece
        at, whole = 0, len(data)
        self._needed_bytes = FRAME_HEAD.size
        while whole - at >= FRAME_HEAD.size:
            kind, size = FRAME_HEAD.unpack_from(data, at)
            if size > self._limit_bytes:
                raise BadEvents("a frame is too large")
            begin = at + FRAME_HEAD.size
            if whole - begin < size:
                self._needed_bytes = FRAME_HEAD.size + size
                break
            at = begin + size
            try:
                yield from self._events(kind, data, begin, at)
            except BadEvents:
                raise
            except (ValueError, LookupError, TypeError, RecursionError, struct.error):
                raise BadEvents("a frame can't be read") from None
        self._held, self._held_bytes = [data[at:]] if at < whole else [], whole - at

    def _events(self, kind: bytes, data: bytes, begin: int, end: int) -> Iterator[Event]:
        if kind in {b"B", b"M", b"Z"}:
            for frame in self._frames(kind, data, begin, end):
                for record in frame.records() if self._is_decoding else (frame,):
                    yield Event("lines", b"", "", record)
            return
        body = data[begin:end]
        if kind == b"S":
            number, node, stream, source = json.loads(body)
            if not (isinstance(number, int) and isinstance(node, str) and isinstance(source, str)):
                raise BadEvents("a stream has no name")
            self._streams[number] = (node, LogKind(stream), source)
        elif kind == b"J":
            name, _, document = body.partition(b"\n")
            yield Event(name.decode(), document, "")
        elif kind == b"C":
            yield Event("cursor", b"", body.decode())
        elif kind == b"X":
            yield Event("error", body, "")
        elif kind in _WITHOUT_BODY:
            yield _WITHOUT_BODY[kind]

    def _frames(self, kind: bytes, data: bytes, begin: int, end: int) -> Iterator[LinesFrame]:
        if end - begin < BLOCK_HEAD.size:
            raise BadEvents("a block has no head")
        head = _BlockHead(*BLOCK_HEAD.unpack_from(data, begin))
        _check_time(head.time_ms)
        begin += BLOCK_HEAD.size
        if kind == b"Z":
            for lines in self._expanded(head, data[begin:end]):
                yield self._frame(head, lines)
            return
        marks: Marks = ()
        if kind == b"M":
            marks, begin = _read_marks(memoryview(data)[:end], begin)
            _check_marks(marks, end - begin)
        self._begun.pop(head.number, None)
        at = Position(head.offset, head.seq)
        is_late, is_unfinished = bool(head.flags & LATE), bool(head.flags & UNFINISHED)
        yield self._frame(
            head,
            Lines(
                at, at, head.time_ms, is_late, data[begin:end], head.line_count, head.cut,
                is_unfinished, marks,
            ),
        )  # fmt: skip

    def _frame(self, head: _BlockHead, lines: Lines) -> LinesFrame:
        node, stream, source = self._streams[head.number]
        rank = None if head.rank < 0 else head.rank
        return LinesFrame.of(node, stream, source, rank, lines)

    def _expanded(self, head: _BlockHead, body: bytes) -> Iterator[Lines]:
        """The lines that end in a stored frame."""
        plain_bytes, begun_bytes = PACKED_SIZES.unpack_from(body)
        if plain_bytes > LARGEST_TEXT_BYTES:
            raise BadEvents("a stored frame is too large")
        marks, begin = _read_marks(body, PACKED_SIZES.size)
        text = _text(body[begin + begun_bytes :], plain_bytes)
        _check_marks(marks, plain_bytes)
        if head.flags & CONTINUED:
            assembler = self._begun[head.number]
        else:
            begun = body[begin : begin + begun_bytes]
            at = Position(head.offset - begun_bytes, head.seq)
            assembler = self._begun[head.number] = LineAssembler(at, begun=begun)
        if assembler.expected != head.offset:
            raise BadEvents("a stored frame does not continue the one before it")
        is_late = bool(head.flags & LATE)
        at = Position(head.offset, head.seq)
        marks = marks if len(marks) > 1 else ()
        yield from assembler.all_lines(
            Piece(at, head.time_ms, is_late, text, head.line_count, marks)
        )


def _read_marks(data: bytes | memoryview, begin: int) -> tuple[Marks, int]:
    """The times, and where they end."""
    (count,) = MARK_COUNT.unpack_from(data, begin)
    if count > _MOST_MARKS:
        raise BadEvents("a block has too many times")
    form = f"!{MARK * count}"
    numbers = struct.unpack_from(form, data, begin + MARK_COUNT.size)
    end = begin + MARK_COUNT.size + struct.calcsize(form)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True)), end


def _check_marks(marks: Marks, size_bytes: int) -> None:
    """Raise `BadEvents` if a line has no time: it would be lost."""
    sizes = [size for size, _ in marks]
    if not sizes or sizes[-1] < size_bytes or any(b <= a for a, b in pairwise([0, *sizes])):
        raise BadEvents("the times of a block don't cover it")
    for _, time_ms in marks:
        _check_time(time_ms)


def _check_time(time_ms: int) -> None:
    if not 0 <= time_ms <= LATEST_MS:
        raise BadEvents("a block has no time")


def _text(stored: bytes, plain_bytes: int) -> bytes:
    try:
        return expanded(stored, plain_bytes)
    except BadPackedText as error:
        raise BadEvents(str(error)) from None


FORMAT = StreamFormat(MEDIA_TYPE, BlockReader)
"""Without frames of kind `Z`."""


def best_format(*, is_decoding: bool = True) -> StreamFormat:
    """The cheapest form that this client can read, and the next one if that fails."""

    def reader() -> BlockReader:
        return BlockReader(is_decoding=is_decoding)

    blocks = StreamFormat(MEDIA_TYPE, reader)
    if not can_expand():
        return blocks
    return StreamFormat(MEDIA_TYPE, reader, f";{ZSTD}=1", blocks)
