"""The messages of a feed: pieces of text, gaps and streams, each within the size limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.domain.logs import Gap, LogKind, LogSource, Piece
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.wire.v1 import logs_pb2 as pb

MESSAGE_BYTES = LARGEST_MESSAGE_BYTES - 4 * 1024
"""The rest is for the fields around the text."""
PIECE_BYTES = 48
GAP_BYTES = 64
"""The most bytes that a piece and a gap take besides their text."""
TEXT_BYTES = MESSAGE_BYTES - PIECE_BYTES
"""The most text of one piece."""
_PUSHED, _PIECES, _TEXT = (number << 3 | 2 for number in (2, 4, 5))
"""Tags of `FeedTell.pushed`, `FeedText.pieces` and `FeedPiece.text`; all have a length."""


def cut(piece: Piece) -> Iterator[Piece]:
    """Split a piece into parts that each fit in a message."""
    at, size = piece.at, len(piece.text)
    if size <= TEXT_BYTES:
        yield piece
        return
    for begin in range(0, size, TEXT_BYTES):
        text = piece.text[begin : begin + TEXT_BYTES]
        part = Piece(at, piece.time_ms, piece.late, text, text.count(b"\n"))
        yield part
        at = part.end


def pushed_message(kind: LogKind, source: LogSource, pieces: Sequence[Piece]) -> bytes:
    """`FeedTell(pushed=…)` as bytes, with one copy of the text instead of three."""
    parts = [pb.FeedText(kind=kind.value, source=str(source)).SerializeToString()]
    for each in pieces:
        head = pb.FeedPiece(
            offset=each.at.offset, line=each.at.line, time_ms=each.time_ms, late=each.late
        ).SerializeToString() + _prefix(_TEXT, len(each.text))
        parts += (_prefix(_PIECES, len(head) + len(each.text)), head, each.text)
    return b"".join((_prefix(_PUSHED, sum(map(len, parts))), *parts))


def frame_message(kind: LogKind, source: LogSource, frame: pb.FeedFrame) -> bytes:
    """`FeedTell(pushed=…)` with one frame."""
    text = pb.FeedText(kind=kind.value, source=str(source), frames=[frame])
    return pb.FeedTell(pushed=text).SerializeToString()


def _prefix(tag: int, size: int) -> bytes:
    """A field's tag and length."""
    prefix = bytearray((tag,))
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix)


def add_piece(text: pb.FeedText, piece: Piece) -> None:
    """Add a piece in place: a message put into another would be copied."""
    text.pieces.add(
        offset=piece.at.offset,
        line=piece.at.line,
        time_ms=piece.time_ms,
        late=piece.late,
        text=piece.text,
    )


def gap_message(gap: Gap) -> pb.FeedGap:
    """A gap as a protobuf message."""
    return pb.FeedGap(
        offset=gap.at.offset,
        line=gap.at.line,
        cause=gap.cause.value,
        lost_bytes=gap.lost_bytes,
        time_ms=gap.time_ms,
    )


def in_parts(report: pb.FeedStreams) -> Iterator[pb.FeedStreams]:
    """Split into messages that fit; the last one has `over` and the other fields."""
    part = pb.FeedStreams()
    for stream in report.streams:
        if part.streams and part.ByteSize() + stream.ByteSize() > MESSAGE_BYTES:
            yield part
            part = pb.FeedStreams()
        part.streams.append(stream)
    part.over, part.clock_ahead_s, part.trouble = report.over, report.clock_ahead_s, report.trouble
    yield part


def without_ends(report: pb.FeedStreams | None) -> list[tuple[object, ...]] | None:
    """The report without the ends of the streams, for comparison."""
    if report is None:
        return None
    shown = (
        (
            *(each.kind, each.source, each.path, each.labelled, each.stored, each.trouble),
            *((gap.offset, gap.cause, gap.lost_bytes) for gap in each.gaps),
        )
        for each in report.streams
    )
    return [(report.over, report.clock_ahead_s, report.trouble), *shown]
