"""A stream of log records as binary frames: text stays the bytes that the job wrote. Pure.

The same records as server-sent events, for clients that accept `MEDIA_TYPE`. Nothing is escaped,
and the client makes lines of the bytes. A frame is a kind, a size, and a body:

    S  a stream: its number on this connection, and its names as JSON
    B  a block of lines: a head of fixed size, and the text
    M  a block of lines of several times: the head, the times, and the text
    Z  a stored zstd frame: the head, its sizes, the times, the line begun before it, and the frame
    J  another record: the name of its event, a line feed, and JSON
    C  the cursor after the records before it
    A  nothing new, and the server is there
    E  the end of the stream
    X  an error, as JSON; nothing follows

`Z` is for clients that accept the parameter `zstd=1`. Its text need not end with a line: the next
`Z` of the stream continues it, or a block has the whole line. Times are pairs: the bytes so far,
and when they were read. A kind that a client does not know is skipped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any, ClassVar, TypeAlias

from lattice.domain.logs import LogKind
from lattice.features.logs.lines import Lines
from lattice.features.logs.model import LogBlock

MEDIA_TYPE = "application/vnd.lattice.blocks"
ZSTD = "zstd"
"""The parameter of the media type; `1` if the client expands frames of kind `Z`."""
FRAME_HEAD = struct.Struct("!cI")
BLOCK_HEAD = struct.Struct("!IiQIQqBI")
"""Number of the stream, rank (-1: not known), line, count, offset, time in ms, flags, cut lines."""
PACKED_SIZES = struct.Struct("!II")
"""The size of the expanded text, and of the line begun before it."""
MARK_COUNT = struct.Struct("!H")
MARK = "Iq"
LATE, UNFINISHED, CONTINUED = 1, 2, 4

Marks: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LinesFrame:
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
    marks: Marks = ()
    """As in `Lines`."""

    type: ClassVar[str] = "lines"

    @classmethod
    def of(
        cls, node: str, stream: LogKind, source: str, rank: int | None, lines: Lines
    ) -> LinesFrame:
        """Lines of that stream."""
        return cls(
            node=node,
            stream=stream,
            source=source,
            rank=rank,
            seq=lines.at.line,
            count=lines.count,
            offset=lines.at.offset,
            time_ms=lines.time_ms,
            late=lines.late,
            cut=lines.cut,
            unfinished=lines.unfinished,
            text=lines.text,
            marks=lines.marks,
        )

    @property
    def time(self) -> datetime:
        """When the last of it was read, by the server's clock."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)

    def record(self) -> LogBlock:
        """The block with its text decoded, and with its last time alone."""
        return LogBlock(
            node=self.node,
            stream=self.stream,
            source=self.source,
            rank=self.rank,
            seq=self.seq,
            count=self.count,
            offset=self.offset,
            time=self.time,
            late=self.late,
            text=self.text.decode("utf-8", "backslashreplace"),
            cut=self.cut,
            unfinished=self.unfinished,
        )

    def records(self) -> Iterator[LogBlock]:
        """A decoded block for each of its times."""
        if not self.marks:
            yield self.record()
            return
        seq, begin = self.seq, 0
        for size, time_ms in self.marks:
            end = self.text.rfind(b"\n", begin, size) + 1
            if end <= begin:
                continue
            text = self.text[begin:end]
            count = text.count(b"\n")
            yield replace(
                self, seq=seq, count=count, offset=self.offset + begin, time_ms=time_ms, text=text
            ).record()
            seq, begin = seq + count, end

    def after(self, count: int) -> LinesFrame:
        """The block without its first lines."""
        size = 0
        for _ in range(count):
            size = self.text.index(b"\n", size) + 1
        return replace(
            self,
            seq=self.seq + count,
            count=self.count - count,
            offset=self.offset + size,
            text=self.text[size:],
            marks=tuple((each - size, time_ms) for each, time_ms in self.marks if each > size),
        )


@dataclass(frozen=True, slots=True)
class PackedLines:
    """A stored frame, for clients that expand it and make its lines."""

    node: str
    stream: LogKind
    source: str
    rank: int | None
    seq: int
    """The number of its first line."""
    count: int
    """How many lines end in it."""
    offset: int
    """The offset of its first byte, which may be within a line."""
    late: bool
    marks: Marks
    begun: bytes | None
    """The first line up to this frame; None if the frame before has it."""
    plain_bytes: int
    stored: bytes

    type: ClassVar[str] = "lines"


class StreamNumbers:
    """The numbers of streams in frames, in the order of their first use."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._known: dict[tuple[str, LogKind, str], int] = {}
        self.frames: dict[int, bytes] = {}
        """For each number, the frame with the names of its stream."""

    def of(self, found: LinesFrame | PackedLines) -> int:
        """The number of its stream."""
        key = (found.node, found.stream, found.source)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = next(self._numbers)
            names = [number, found.node, found.stream.value, found.source]
            self.frames[number] = b"".join(_framed(b"S", json.dumps(names).encode()))
        return number


_FIRST_SHARED = 1 << 31
_SHARED_NUMBERS = (_FIRST_SHARED + number % _FIRST_SHARED for number in count())
"""Above a connection's own numbers. None is used twice: a connection may join another follow."""


def shared_numbers() -> StreamNumbers:
    """Numbers for records that several connections send."""
    return StreamNumbers(_SHARED_NUMBERS)


class RecordGroup:
    """Records with their cursors that several connections send: encoded once for all."""

    __slots__ = ("_encoded", "_used", "is_taken", "numbers", "records")

    def __init__(self, numbers: StreamNumbers, records: list[tuple[Any, str]]) -> None:
        self.numbers = numbers
        self.records = records
        self.is_taken = False
        """True once a follower has taken it: it does not grow any more."""
        self._encoded = b""
        self._used: set[int] = set()

    def encoded(self, encode: Callable[[Any], bytes]) -> tuple[bytes, AbstractSet[int]]:
        """The frames, and the numbers of the streams in them."""
        if not self._encoded:
            parts: list[bytes] = []
            for record, cursor in self.records:
                if isinstance(record, LinesFrame | PackedLines):
                    self._used.add(self.numbers.of(record))
                parts += _frames(record, cursor, self.numbers, encode)
            self._encoded = b"".join(parts)
        return self._encoded, self._used


class BlockWriter:
    """Encodes the records of one connection. `encode` makes JSON of records without lines."""

    begin = alive = FRAME_HEAD.pack(b"A", 0)
    end = FRAME_HEAD.pack(b"E", 0)

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self._encode = encode
        self._numbers = StreamNumbers(count())
        self._named: set[int] = set()
        """Numbers of streams whose names were sent."""

    def record(self, record: Any, cursor: str) -> bytes:
        """A record, or a group of them, and the cursor after it if there is one."""
        if isinstance(record, RecordGroup):
            frames, used = record.encoded(self._encode)
            if used <= self._named:
                return frames
            return self._names(record.numbers, used) + frames
        frames = b"".join(_frames(record, cursor, self._numbers, self._encode))
        if isinstance(record, LinesFrame | PackedLines):
            return self._names(self._numbers, {self._numbers.of(record)}) + frames
        return frames

    def _names(self, numbers: StreamNumbers, used: AbstractSet[int]) -> bytes:
        """Frames with the names of those streams that are new to this connection."""
        new = used - self._named
        self._named |= new
        return b"".join(numbers.frames[each] for each in sorted(new))

    def error(self, document: bytes) -> bytes:
        """An error, after which nothing follows."""
        return b"".join(_framed(b"X", document))


def _frames(
    record: Any, cursor: str, numbers: StreamNumbers, encode: Callable[[Any], bytes]
) -> list[bytes]:
    if isinstance(record, LinesFrame):
        parts = _block(record, numbers.of(record))
    elif isinstance(record, PackedLines):
        parts = _packed(record, numbers.of(record))
    else:
        parts = _framed(b"J", record.type.encode(), b"\n", encode(record))
    return parts + _framed(b"C", cursor.encode()) if cursor else parts


def _block(found: LinesFrame, number: int) -> list[bytes]:
    flags = LATE * found.late | UNFINISHED * found.unfinished
    head = BLOCK_HEAD.pack(
        number, _rank(found), found.seq, found.count, found.offset, found.time_ms, flags, found.cut
    )
    if found.marks:
        return _framed(b"M", head, _packed_marks(found.marks), found.text)
    return [FRAME_HEAD.pack(b"B", len(head) + len(found.text)), head, found.text]


def _rank(found: LinesFrame | PackedLines) -> int:
    return -1 if found.rank is None else found.rank


def _packed(found: PackedLines, number: int) -> list[bytes]:
    begun, marks = found.begun or b"", found.marks
    flags = LATE * found.late | CONTINUED * (found.begun is None)
    head = BLOCK_HEAD.pack(
        number, _rank(found), found.seq, found.count, found.offset, marks[-1][1], flags, 0
    )
    sizes = PACKED_SIZES.pack(found.plain_bytes, len(begun))
    return _framed(b"Z", head, sizes, _packed_marks(marks), begun, found.stored)


def _framed(kind: bytes, *parts: bytes) -> list[bytes]:
    return [FRAME_HEAD.pack(kind, sum(map(len, parts))), *parts]


def _packed_marks(marks: Marks) -> bytes:
    numbers = [number for each in marks for number in each]
    return MARK_COUNT.pack(len(marks)) + struct.pack(f"!{MARK * len(marks)}", *numbers)
