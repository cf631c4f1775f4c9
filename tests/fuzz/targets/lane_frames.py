"""A hostile peer on a lane: frames over TLS, the opening, and the frames of a pipe.

- A lane gives the frames that a plain reading of the whole gives, whatever the pieces they come in.
- It ends at the first frame that is too large, and gives nothing after it.
- It never holds more than one frame and one TLS record.
- The opening and the frames of a pipe are read or refused; nothing else escapes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

from lattice.domain.pipe import BadFrame, FrameKind, Pipe
from lattice.domain.stream import CarrierLost
from lattice.wire.carriers import read_frame
from lattice.wire.lane import LARGEST_FRAME_BYTES, TlsLane
from lattice.wire.v1.link_pb2 import Frame, StreamOpening

_SIZE = struct.Struct("!I")
_TLS_RECORD_BYTES = 16 * 1024
TOKENS = (
    b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\x11", b"\0\4\0\0", b"\0\4\0\1", b"\xff\xff\xff\xff",
    *(bytes((each,)) for each in FrameKind),
)  # fmt: skip


class _Sink:
    """Collects what a lane brings."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.reason = ""

    def received(self, frame: bytes) -> None:
        assert not self.reason, "a frame after the end"
        self.frames.append(frame)

    def lost(self, reason: str) -> None:
        assert not self.reason, "two ends"
        self.reason = reason

    def resumed(self) -> None:
        raise AssertionError("nothing was paused")


def try_one(data: bytes) -> None:
    """The first byte is the size of the pieces; the rest comes from the peer."""
    size, raw = (data[0] + 1, data[1:]) if data else (1, b"")
    expected, is_refused = _plainly(raw)
    for pieces in ([raw], [raw[at : at + size] for at in range(0, len(raw), size)]):
        sink = _read(pieces)
        assert (sink.frames, bool(sink.reason)) == (expected, is_refused)
    with suppress(CarrierLost):
        read_frame(expected[0] if expected else b"")
    pipe = Pipe()
    with suppress(BadFrame):
        for frame in expected:
            pipe.receive(frame)
            pipe.frames()


def _plainly(raw: bytes) -> tuple[list[bytes], bool]:
    """The frames, and whether one was too large."""
    frames, at = [], 0
    while at + _SIZE.size <= len(raw):
        (size,) = _SIZE.unpack_from(raw, at)
        if size > LARGEST_FRAME_BYTES:
            return frames, True
        at += _SIZE.size
        if at + size > len(raw):
            break
        frames.append(raw[at : at + size])
        at += size
    return frames, False


def _read(pieces: list[bytes]) -> _Sink:
    lane, sink = TlsLane(), _Sink()
    lane.attach(sink)
    for piece in pieces:
        at = 0
        while at < len(piece) and lane.usable:
            room = lane.get_buffer(-1)
            assert 0 < len(room) <= LARGEST_FRAME_BYTES + _SIZE.size + _TLS_RECORD_BYTES
            size = min(len(room), len(piece) - at)
            room[:size] = piece[at : at + size]
            lane.buffer_updated(size)
            at += size
    return sink


def seeds() -> Iterator[bytes]:
    """A session from its opening to its end, and each fault."""
    opening = Frame(open=StreamOpening(ticket="0" * 32)).SerializeToString()
    one, other = Pipe(), Pipe()
    one.connected()
    other.connected()
    frames = [opening, *one.frames()]
    for each in other.frames():
        one.receive(each)
    one.write(b"a line\n")
    one.write(b"", last=True)
    frames += [*one.frames(), one.ping()]
    whole = b"".join(_SIZE.pack(len(each)) + each for each in frames)
    yield b""
    for size in (0, 3, 254):
        yield bytes((size,)) + whole
    yield b"\x01" + whole[:-3]
    yield b"\x01" + whole + _SIZE.pack(LARGEST_FRAME_BYTES + 1) + b"never read"
    yield b"\x07" + _SIZE.pack(LARGEST_FRAME_BYTES)
    yield b"\x07" + _SIZE.pack(0) * 5
    yield b"\x02" + _SIZE.pack(len(opening)) + opening
    yield b"\x00" + _SIZE.pack(len(opening) + 1) + opening
    yield b"\x1f" + whole + whole
