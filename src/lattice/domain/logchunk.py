"""A chunk: the object that stores a part of one log stream. Pure: bytes in, bytes out.

    chunk  = frame* , index
    frame  = a zstd frame with its checksum, of at most 256 KiB of plain text
    index  = a zstd skippable frame: compressed JSON, its length (4 bytes), `LATTICE1`

So `zstdcat` shows the text, the last kilobytes describe the content, and a range is a ranged read.
A chunk may be torn or forged. It is checked before use, and nothing is unpacked beyond the sizes in
the index.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

import msgspec

from lattice.base.packed_text import BadPackedText, expanded
from lattice.base.zstd import compress_secret, zstd
from lattice.domain.logs import (
    LATEST_MS,
    Gap,
    GapCause,
    LogKind,
    LogSource,
    Piece,
    Position,
)

FRAME_BYTES = 256 * 1024
CHUNK_BYTES = 8 * 1024 * 1024
LARGEST_CHUNK_BYTES = CHUNK_BYTES + 2 * FRAME_BYTES + 1024 * 1024
"""The frame that reaches the size closes a chunk. Frames that don't compress and the index come on
top.
"""
TAIL_BYTES = 16 * 1024
"""How much of an object's end a reader fetches; it contains nearly every index."""
MOST_MARKS = 512
_MAGIC = 0x184D2A5C
_HEAD = struct.Struct("<II")
_FOOT = struct.Struct("<I8s")
_MARK = b"LATTICE1"
_LARGEST_INDEX_BYTES = 512 * 1024
_LARGEST_INDEX_TEXT_BYTES = 8 * 1024 * 1024
_MOST_GAPS = 64 * 1024
_SMALLEST_FRAME_BYTES = 9
_LEVEL = 1
_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: _LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class BadChunk(ValueError):
    """Not a chunk, or one that is torn, forged or newer than this reader."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One frame, as the index describes it.

    `marks` are pairs of differences: bytes read, and milliseconds passed. The first pair counts
    from the frame's beginning and from 1970.
    """

    stored_bytes: _Count
    plain_bytes: Annotated[int, msgspec.Meta(ge=1, le=FRAME_BYTES)]
    lines: _Count
    marks: tuple[int, ...]
    late: bool = False
    """True for text older than the agent's first reading. Its times are those of the reading."""

    @property
    def times_ms(self) -> tuple[int, int]:
        """When its first and its last bytes were read."""
        times = self.marks[1::2]
        return (times[0], sum(times)) if times else (0, 0)

    @property
    def is_in_order(self) -> bool:
        """True if none of its times is before an earlier one."""
        return min(self.marks[1::2], default=0) >= 0


class _Gap(msgspec.Struct, frozen=True, array_like=True):
    offset: _Count
    line: _Count
    cause: GapCause
    lost_bytes: _Count | None
    time_ms: Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]


class ChunkIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a chunk."""

    format: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    node: str
    job_id: _Count
    started: Annotated[float, msgspec.Meta(ge=0)]
    """When the job began on the node, by the node's clock."""
    kind: LogKind
    source: str
    path: str = ""
    labelled: bool = False
    """True if Slurm writes each line's task before it."""
    offset: _Count
    line: _Count
    frames: tuple[Frame, ...] = ()
    gap_records: tuple[_Gap, ...] = msgspec.field(default=(), name="gaps")
    last: bool = False
    """True if it is the last chunk of the stream."""
    before: _Count | None = None
    """How many chunks of this stream came before it; None if unknown."""
    sha256: str
    """Of the stored frames. Each frame has a checksum of its text inside."""

    @property
    def begin(self) -> Position:
        return Position(self.offset, self.line)

    @property
    def end(self) -> Position:
        return Position(
            self.offset + sum(each.plain_bytes for each in self.frames),
            self.line + sum(each.lines for each in self.frames),
        )

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return tuple(
            Gap(Position(each.offset, each.line), each.cause, each.lost_bytes, each.time_ms)
            for each in self.gap_records
        )

    @property
    def stored_bytes(self) -> int:
        return sum(each.stored_bytes for each in self.frames)

    def placed(self) -> Iterator[PlacedFrame]:
        """Every frame with its beginning in the text and in the object."""
        at, stored = self.begin, 0
        for frame in self.frames:
            yield PlacedFrame(frame, at, stored)
            at = Position(at.offset + frame.plain_bytes, at.line + frame.lines)
            stored += frame.stored_bytes


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """A frame and where it begins."""

    frame: Frame
    begin: Position
    stored_at: int

    @property
    def end(self) -> Position:
        return Position(
            self.begin.offset + self.frame.plain_bytes, self.begin.line + self.frame.lines
        )

    @property
    def times_ms(self) -> tuple[int, int]:
        """When its first and its last bytes were read."""
        return self.frame.times_ms


def pack_marks(marks: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Convert (bytes so far, time) into the form of an index; thinned if there are very many.

    Text of a dropped mark gets the time of the next mark: never earlier than it was read.
    """
    step = -(-len(marks) // MOST_MARKS) or 1
    thinned = [each for number, each in enumerate(marks, 1) if number % step == 0]
    if marks and (not thinned or thinned[-1] != marks[-1]):
        thinned.append(marks[-1])
    packed: list[int] = []
    before = (0, 0)
    for mark in thinned:
        packed += (mark[0] - before[0], mark[1] - before[1])
        before = mark
    return tuple(packed)


def unpack_marks(packed: Sequence[int]) -> list[tuple[int, int]]:
    """(bytes so far, time in milliseconds since 1970), in order."""
    marks = []
    size = time_ms = 0
    for at in range(0, len(packed) - 1, 2):
        size += packed[at]
        time_ms += packed[at + 1]
        marks.append((size, time_ms))
    return marks


_idle: deque[zstd.ZstdCompressor] = deque(maxlen=2)
"""A new compressor for every frame would cost a quarter of the compression. The buffers of these
keep the end of the text that they compressed last.
"""


def compress(text: bytes) -> bytes:
    """One frame. `text` has at most `FRAME_BYTES`. Safe in any thread."""
    try:
        packing = _idle.pop()
    except IndexError:
        packing = zstd.ZstdCompressor(options=_OPTIONS)
    stored = packing.compress(text, zstd.ZstdCompressor.FLUSH_FRAME)
    _idle.append(packing)
    return stored


def compress_sensitive(text: bytes) -> bytes:
    """The same, by a compressor that is freed with what it has of the text."""
    return compress_secret(text, _OPTIONS)


def expand(stored: bytes | memoryview, frame: Frame) -> bytes:
    """The plain text of a frame. Raises `BadChunk`; never unpacks more than the frame's size."""
    try:
        return expanded(stored, frame.plain_bytes)
    except BadPackedText as error:
        raise BadChunk(str(error)) from None


def index_frame(index: ChunkIndex) -> bytes:
    """The end of a chunk."""
    packed = zstd.compress(msgspec.json.encode(index), _LEVEL)
    body = packed + _FOOT.pack(len(packed), _MARK)
    return _HEAD.pack(_MAGIC, len(body)) + body


def index_size(tail: bytes) -> int:
    """The size of the index at an object's end. Raises `BadChunk`."""
    if len(tail) < _FOOT.size:
        raise BadChunk("too short for a chunk")
    size, mark = _FOOT.unpack(tail[-_FOOT.size :])
    if mark != _MARK or size > _LARGEST_INDEX_BYTES:
        raise BadChunk("not a chunk")
    return int(size) + _FOOT.size + _HEAD.size


def read_index(tail: bytes, object_bytes: int) -> ChunkIndex:
    """The index at the end of an object of that size. Raises `BadChunk`."""
    size = index_size(tail)
    if size > len(tail) or size > object_bytes:
        raise BadChunk("the index is cut")
    frame = tail[-size:]
    magic, body = _HEAD.unpack(frame[: _HEAD.size])
    if magic != _MAGIC or body != size - _HEAD.size:
        raise BadChunk("the index is not where it says")
    try:
        unpacking = zstd.ZstdDecompressor()
        text = unpacking.decompress(
            frame[_HEAD.size : -_FOOT.size], max_length=_LARGEST_INDEX_TEXT_BYTES
        )
        _check_plausible(text, object_bytes)
        index = _DECODER.decode(text)
        LogSource.parse(index.source)
    except (zstd.ZstdError, EOFError, msgspec.MsgspecError, ValueError, RecursionError):
        raise BadChunk("the index can't be read") from None
    if index.stored_bytes + size != object_bytes:
        raise BadChunk("the frames don't fill the object")
    for each in index.frames:
        check_marks(each)
    return index


_DECODER = msgspec.json.Decoder(ChunkIndex)


def _check_plausible(text: bytes, object_bytes: int) -> None:
    """Check before decoding: a forged kilobyte can unpack to millions of entries."""
    frames = object_bytes // _SMALLEST_FRAME_BYTES
    lists = 2 * frames + _MOST_GAPS + 8
    numbers = (2 * MOST_MARKS + 8) * frames + 5 * _MOST_GAPS + 64
    if text.count(b"[") > lists or text.count(b",") > numbers:
        raise BadChunk("the index tells of more than the object can hold")


def check_marks(frame: Frame) -> None:
    """Return if the marks cover the frame and are valid times. Raises `BadChunk`."""
    sizes = frame.marks[::2]
    if len(frame.marks) % 2 or not sizes or len(sizes) > MOST_MARKS + 1:
        raise BadChunk("a frame has no times")
    if sum(sizes) != frame.plain_bytes or min(sizes) <= 0:
        raise BadChunk("the times of a frame don't cover it")
    steps = frame.marks[1::2]
    # Times mostly grow; then the first and the last are enough.
    times = accumulate(steps) if min(steps) < 0 else (steps[0], sum(steps))
    if not all(0 <= time_ms <= LATEST_MS for time_ms in times):
        raise BadChunk("a time of a frame is none")


def frames_of(chunk: bytes, index: ChunkIndex) -> Iterator[tuple[PlacedFrame, bytes]]:
    """Every frame with its plain text, each checked. Raises `BadChunk`."""
    for placed in index.placed():
        stored = chunk[placed.stored_at : placed.stored_at + placed.frame.stored_bytes]
        text = expand(stored, placed.frame)
        if text.count(b"\n") != placed.frame.lines:
            raise BadChunk("a frame's lines are miscounted")
        yield placed, text


def piece_of(placed: PlacedFrame, text: bytes) -> Piece:
    """A frame's text as one piece, with the index's own count of its lines."""
    frame = placed.frame
    marks = tuple(unpack_marks(frame.marks)) if len(frame.marks) > 2 else ()
    return Piece(placed.begin, frame.times_ms[1], frame.late, text, frame.lines, marks)


def pieces_of(placed: PlacedFrame, text: bytes) -> Iterator[Piece]:
    """A frame's text in pieces as it was read."""
    return piece_of(placed, text).by_time()


def verify(chunk: bytes) -> ChunkIndex:
    """Check every byte of a chunk and return its index. Raises `BadChunk`."""
    index = read_index(chunk, len(chunk))
    digest = hashlib.sha256(memoryview(chunk)[: index.stored_bytes])
    if digest.hexdigest() != index.sha256:
        raise BadChunk("the frames are not what the index says")
    for _ in frames_of(chunk, index):
        # The iterator checks each frame.
        pass
    gaps = index.gaps
    if any(not index.begin.offset <= each.at.offset <= index.end.offset for each in gaps):
        raise BadChunk("a gap lies elsewhere")
    if any(each.cause is GapCause.TAMPERED for each in gaps):
        raise BadChunk("a node can't know that something was tampered with")
    return index


def gap_records(gaps: Iterable[Gap]) -> tuple[_Gap, ...]:
    """Gaps in the form of an index."""
    return tuple(
        _Gap(each.at.offset, each.at.line, each.cause, each.lost_bytes, each.time_ms)
        for each in gaps
    )
