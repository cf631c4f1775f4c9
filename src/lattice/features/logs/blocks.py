"""A stream of log records as binary frames: text stays the bytes that the job wrote. Pure.

The same records as server-sent events, for clients that accept `MEDIA_TYPE`. Nothing is escaped,
and the client makes lines of the bytes. A frame is a kind, a size, and a body:

    S  a stream: its number on this connection, and its names as JSON
    B  a block of lines: a head of fixed size, and the text
    J  another record: the name of its event, a line feed, and JSON
    C  the cursor after the records before it
    A  nothing new, and the server is there
    E  the end of the stream
    X  an error, as JSON; nothing follows
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lattice.base.call import StreamFormat
from lattice.base.events import ALIVE, BadEvents, Event
from lattice.domain.logs import LogKind
from lattice.features.logs.model import LogBlock

MEDIA_TYPE = "application/vnd.lattice.blocks"
LARGEST_FRAME_BYTES = 4 * 1024 * 1024
"""Far above what a server sends as one frame."""
_HEAD = struct.Struct("!cI")
_BLOCK = struct.Struct("!IiQIQqBI")
"""Number of the stream, rank (-1: not known), line, count, offset, time in ms, flags, cut lines."""
_LATE, _UNFINISHED = 1, 2


class LinesFrame(NamedTuple):
    """A block of lines before it is decoded."""

    node: str
    stream: LogKind
    source: str
    rank: int | None
    seq: int
    count: int
    offset: int
    time_ms: int
    late: bool
    cut: int
    unfinished: bool
    text: bytes

    type = "lines"

    def record(self) -> LogBlock:
        """The block with its text decoded."""
        return LogBlock(
            node=self.node,
            stream=self.stream,
            source=self.source,
            rank=self.rank,
            seq=self.seq,
            count=self.count,
            offset=self.offset,
            time=datetime.fromtimestamp(self.time_ms / 1000, UTC),
            late=self.late,
            text=self.text.decode("utf-8", "backslashreplace"),
            cut=self.cut,
            unfinished=self.unfinished,
        )


class BlockWriter:
    """Encodes the records of one connection. `encode` makes JSON of records without lines."""

    begin = alive = _HEAD.pack(b"A", 0)
    end = _HEAD.pack(b"E", 0)

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self._encode = encode
        self._numbers: dict[tuple[str, str, str], int] = {}

    def record(self, record: Any, cursor: str) -> bytes:
        """A record, and the cursor after it if there is one."""
        if isinstance(record, LinesFrame):
            frame = self._lines(record)
        else:
            frame = _frame(b"J", f"{record.type}\n".encode() + self._encode(record))
        return frame + _frame(b"C", cursor.encode()) if cursor else frame

    def error(self, document: bytes) -> bytes:
        """An error, after which nothing follows."""
        return _frame(b"X", document)

    def _lines(self, found: LinesFrame) -> bytes:
        """A block, after the stream's names if it is the first of its stream."""
        key = (found.node, found.stream.value, found.source)
        number = self._numbers.get(key)
        before = b""
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            before = _frame(b"S", json.dumps([number, *key]).encode())
        flags = _LATE * found.late | _UNFINISHED * found.unfinished
        rank = -1 if found.rank is None else found.rank
        head = _BLOCK.pack(
            number, rank, found.seq, found.count, found.offset, found.time_ms, flags, found.cut
        )
        size = _HEAD.pack(b"B", len(head) + len(found.text))
        return b"".join((before, size, head, found.text))


def _frame(kind: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(body)) + body


class BlockReader:
    """Takes pieces of any size and returns the events that are complete."""

    def __init__(self, limit_bytes: int = LARGEST_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held = b""
        self._streams: dict[int, tuple[str, LogKind, str]] = {}

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that end in this piece, in order. Raises `BadEvents`."""
        data = self._held + piece if self._held else piece
        at, whole = 0, len(data)
        while whole - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(data, at)
            if size > self._limit_bytes:
                raise BadEvents("a frame is too large")
            begin = at + _HEAD.size
            if whole - begin < size:
                break
            at = begin + size
            event = self._event(kind, data, begin, at)
            if event is not None:
                yield event
        self._held = data[at:]

    def _event(self, kind: bytes, data: bytes, begin: int, end: int) -> Event | None:
        try:
            if kind == b"B":
                return Event("lines", b"", "", self._block(data, begin, end))
            body = data[begin:end]
            if kind == b"S":
                number, node, stream, source = json.loads(body)
                self._streams[number] = (node, LogKind(stream), source)
                return None
            if kind == b"J":
                name, _, record = body.partition(b"\n")
                return Event(name.decode(), record, "")
            if kind == b"C":
                return Event("cursor", b"", body.decode())
        except (ValueError, KeyError, TypeError, struct.error, OverflowError, OSError):
            raise BadEvents("a frame can't be read") from None
        return {b"A": ALIVE, b"E": Event("end", b"", ""), b"X": Event("error", body, "")}.get(kind)

    def _block(self, data: bytes, begin: int, end: int) -> LogBlock:
        number, rank, seq, count, offset, time_ms, flags, cut = _BLOCK.unpack_from(
            data[begin : begin + _BLOCK.size]
        )
        node, stream, source = self._streams[number]
        return LinesFrame(
            node=node,
            stream=stream,
            source=source,
            rank=None if rank < 0 else rank,
            seq=seq,
            count=count,
            offset=offset,
            time_ms=time_ms,
            late=bool(flags & _LATE),
            cut=cut,
            unfinished=bool(flags & _UNFINISHED),
            text=data[begin + _BLOCK.size : end],
        ).record()


FORMAT = StreamFormat(MEDIA_TYPE, BlockReader)
