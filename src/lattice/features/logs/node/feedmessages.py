"""The messages of a feed: pieces of text, gaps and streams, none larger than may be sent."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.logs import Gap, Piece
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.wire.v1 import logs_pb2 as pb

MESSAGE_BYTES = LARGEST_MESSAGE_BYTES - 4 * 1024
"""The rest is for what stands around the text."""
PIECE_BYTES = 48
GAP_BYTES = 64
"""What a piece and a gap take of a message beside their text, at most."""
_TEXT_BYTES = MESSAGE_BYTES - PIECE_BYTES


def cut(piece: Piece) -> Iterator[Piece]:
    """In parts that each fit in a message alone."""
    at, size = piece.at, len(piece.text)
    for begin in range(0, size, _TEXT_BYTES):
        text = piece.text[begin : begin + _TEXT_BYTES]
        part = Piece(at, piece.time_ms, piece.late, text)
        yield part
        if begin + _TEXT_BYTES < size:
            at = part.end


def add_piece(text: pb.FeedText, piece: Piece) -> None:
    """In place: a message put into another is copied whole."""
    text.pieces.add(
        offset=piece.at.offset,
        line=piece.at.line,
        time_ms=piece.time_ms,
        late=piece.late,
        text=piece.text,
    )


def gap_message(gap: Gap) -> pb.FeedGap:
    """What is missing, and why."""
    return pb.FeedGap(
        offset=gap.at.offset,
        line=gap.at.line,
        cause=gap.cause.value,
        lost_bytes=gap.lost_bytes,
        time_ms=gap.time_ms,
    )


def in_parts(told: pb.FeedStreams) -> Iterator[pb.FeedStreams]:
    """Each fits in a message; that all is over is said in the last."""
    part = pb.FeedStreams()
    for stream in told.streams:
        if part.streams and part.ByteSize() + stream.ByteSize() > MESSAGE_BYTES:
            yield part
            part = pb.FeedStreams()
        part.streams.append(stream)
    part.over, part.clock_ahead_s, part.trouble = told.over, told.clock_ahead_s, told.trouble
    yield part


def without_ends(told: pb.FeedStreams | None) -> list[tuple[object, ...]] | None:
    """What is told of streams, but for how far they go."""
    if told is None:
        return None
    shown = (
        (
            *(each.kind, each.source, each.path, each.labelled, each.stored, each.trouble),
            *((gap.offset, gap.cause, gap.lost_bytes) for gap in each.gaps),
        )
        for each in told.streams
    )
    return [(told.over, told.clock_ahead_s, told.trouble), *shown]
