"""What a recorder on a node and the server say to each other on a session's carrier. Pure.

    node      CHUNK a chunk to store · STOPPED why there is no recording, and so no session
    server    STORED the number and the link of a chunk that is durable

They stand beside the frames of the pipe, which neither end of the pipe ever sees. A server accepts
none of them from a client.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from enum import IntEnum

from lattice.base.strictjson import read_fields, read_json
from lattice.domain.recording import LINK_BYTES, RecordingName

_STORED = struct.Struct(f"!BQ{LINK_BYTES}s")
_OPENING = b"lattice recorded terminal 1\n"
_LONGEST_REASON = 500


class RecordingFrame(IntEnum):
    """The first byte of a frame."""

    CHUNK = 16
    STORED = 17
    STOPPED = 18


class LeftoverMessage(IntEnum):
    """The first byte of a message about the chunks of a session that is over.

    The node sends each CHUNK that it has, and last DONE. The server stores them and sends CLOSED.
    UNREADABLE in place of DONE: the node has more, and can't read it.
    """

    CHUNK = 1
    DONE = 2
    CLOSED = 3
    UNREADABLE = 4


class BadRecordingFrame(Exception):
    """The other end breaks the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOrder:
    """What the recorder has to know, from the server."""

    cluster: str
    allocation: str
    """The identity of the allocation, which names its data key too."""
    session: str
    rows: int
    columns: int
    terminal: str
    command: str
    timestamp: int

    @property
    def name(self) -> RecordingName:
        return RecordingName(self.cluster, self.allocation, self.session)


def is_of_recording(frame: bytes | memoryview) -> bool:
    return len(frame) > 0 and frame[0] >= RecordingFrame.CHUNK


def chunk_frame(chunk: bytes) -> bytes:
    return bytes((RecordingFrame.CHUNK,)) + chunk


def stored_frame(number: int, link: bytes) -> bytes:
    return _STORED.pack(RecordingFrame.STORED, number, link)


def read_stored(frame: bytes | memoryview) -> tuple[int, bytes]:
    """The number and the link. Raises `BadRecordingFrame`."""
    if len(frame) != _STORED.size or frame[0] != RecordingFrame.STORED:
        raise BadRecordingFrame("not the answer to a chunk")
    _, number, link = _STORED.unpack(frame)
    return number, link


def stopped_frame(reason: str) -> bytes:
    return bytes((RecordingFrame.STOPPED,)) + reason[:_LONGEST_REASON].encode()


def read_stopped(frame: bytes | memoryview) -> str:
    return bytes(frame[1:]).decode(errors="replace")[:_LONGEST_REASON]


def write_opening(order: RecordingOrder, request: bytes) -> bytes:
    """The opening of a stream with a recorded terminal."""
    return _OPENING + json.dumps(asdict(order), separators=(",", ":")).encode() + b"\n" + request


def has_order(opening: bytes) -> bool:
    """True for the opening of a recorded terminal."""
    return opening.startswith(_OPENING)


def read_opening(opening: bytes) -> tuple[RecordingOrder | None, bytes]:
    """The order, if there is one, and the request for the helper. Raises `BadRecordingFrame`."""
    if not opening.startswith(_OPENING):
        return None, opening
    line, newline, request = opening.removeprefix(_OPENING).partition(b"\n")
    try:
        order = read_fields(read_json(line), RecordingOrder)
    except ValueError as problem:
        raise BadRecordingFrame(str(problem)) from None
    if not newline:
        raise BadRecordingFrame("there is no request")
    return order, request
