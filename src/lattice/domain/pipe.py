"""One end of a two-way pipe of messages that outlives its connections. Pure: no I/O, no clock.

Two ends exchange frames over the current connection. Every message has a number. Each end keeps
what the other has not confirmed, so after a cut at any byte both continue where they were. Nothing
is lost, repeated or reordered. The reader's window bounds what both ends keep, however long the
pipe lives. A relay between them keeps nothing.

    HELLO  the first frame of either end on every connection: what it has, what it has room for
    DATA   one message, its number, and the number of the last one received
    ACK    the same two figures as HELLO, when there is no DATA to carry them
    END    the last message: no other follows
    PING, PONG  a check that the other end is there

Room is counted in bytes since the beginning, so that a retransmission is not counted again.
"""

from __future__ import annotations

import struct
from collections import deque
from enum import IntEnum
from typing import NamedTuple

WINDOW_BYTES = 2 * 1024 * 1024
LARGEST_MESSAGE_BYTES = 240 * 1024
_OVERHEAD_BYTES = 64
"""The cost of a message besides its bytes, which also bounds many empty ones."""
_HEAD = struct.Struct("!BQQ")


class FrameKind(IntEnum):
    """The first byte of a frame."""

    HELLO = 0
    DATA = 1
    ACK = 2
    END = 3
    PING = 4
    PONG = 5


class BadFrame(Exception):
    """The other end breaks the protocol, so the pipe can't be trusted any more."""


class Message(NamedTuple):
    """A received message; `last` if nothing follows."""

    payload: bytes
    last: bool = False


class _Unconfirmed(NamedTuple):
    number: int
    payload: bytes
    last: bool
    until: int
    """The count of bytes including this message."""


def cost(payload: bytes) -> int:
    """What a message takes of a window."""
    return len(payload) + _OVERHEAD_BYTES


class Pipe:
    """One end. `connected` begins a connection; `frames` returns output, `receive` takes input."""

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        if window_bytes < LARGEST_MESSAGE_BYTES + _OVERHEAD_BYTES:
            raise ValueError("a window must hold the largest message")
        self._window = window_bytes
        # Outgoing.
        self._unconfirmed: deque[_Unconfirmed] = deque()
        self._written = 0
        self._written_bytes = 0
        self._next = 0
        """How many of the kept messages were sent on this connection."""
        self._limit = 0
        self._finished = False
        self._confirmed_bytes = 0
        # Incoming.
        self._inbox: deque[Message] = deque()
        self._received = 0
        self._received_bytes = 0
        self._taken_bytes = 0
        self._reported = 0
        self._reported_limit = 0
        self._ended = False
        # The connection.
        self._greeted = False
        self._met = False
        self._answers: list[bytes] = []

    # For the owner of this end.

    @property
    def writable(self) -> bool:
        """True while another message may be written; otherwise wait for the reader."""
        return not self._finished and self._written_bytes - self._confirmed_bytes < self._window

    def write(self, payload: bytes, *, last: bool = False) -> None:
        """Queue a message for delivery; the owner checks `writable` first. Raises `ValueError`."""
        if self._finished:
            raise ValueError("the pipe is finished")
        if len(payload) > LARGEST_MESSAGE_BYTES:
            raise ValueError("the message is too large")
        self._written += 1
        self._written_bytes += cost(payload)
        self._unconfirmed.append(_Unconfirmed(self._written, payload, last, self._written_bytes))
        self._finished = last

    def take(self) -> Message | None:
        if not self._inbox:
            return None
        message = self._inbox.popleft()
        self._taken_bytes += cost(message.payload)
        return message

    @property
    def delivered(self) -> bool:
        """True when everything written has been confirmed."""
        return not self._unconfirmed

    @property
    def over(self) -> bool:
        """True when both ends have sent their last message and know that the other has it."""
        return (
            self._finished and self._ended and self.delivered and self._reported == self._received
        )

    # For the connection.

    def connected(self) -> None:
        """A connection begins. What was sent over an earlier one may be lost."""
        self._greeted = self._met = False
        self._next = 0
        self._answers = []

    @property
    def ready(self) -> bool:
        """True if `frames` has something to send."""
        if not self._met:
            return not self._greeted
        sendable = (
            self._next < len(self._unconfirmed)
            and self._unconfirmed[self._next].until <= self._limit
        )
        return sendable or bool(self._answers) or self._should_report()

    def frames(self) -> list[bytes]:
        """All frames that may be sent now, in order."""
        return [b"".join(parts) for parts in self.parts()]

    def parts(self) -> list[tuple[bytes, ...]]:
        """As `frames`, each as its head and its payload."""
        out: list[tuple[bytes, ...]] = []
        if not self._greeted:
            self._greeted = True
            out.append((self._figures(FrameKind.HELLO),))
        if not self._met:
            return out
        out += ((each,) for each in self._answers)
        self._answers = []
        while self._next < len(self._unconfirmed):
            message = self._unconfirmed[self._next]
            if message.until > self._limit:
                break
            kind = FrameKind.END if message.last else FrameKind.DATA
            out.append((_HEAD.pack(kind, message.number, self._received), message.payload))
            self._reported = self._received
            self._next += 1
        if self._should_report():
            out.append((self._figures(FrameKind.ACK),))
        return out

    def ping(self) -> bytes:
        """A frame that asks whether the other end is there."""
        return _HEAD.pack(FrameKind.PING, 0, 0)

    def receive(self, frame: bytes | memoryview) -> None:
        """Process a frame of the other end. Raises `BadFrame`."""
        if len(frame) < _HEAD.size:
            raise BadFrame("a frame is shorter than its head")
        kind, number, figure = _HEAD.unpack_from(frame)
        if kind == FrameKind.HELLO:
            self._meet(number, figure)
        elif not self._met:
            raise BadFrame("a frame came before the greeting")
        elif kind in {FrameKind.DATA, FrameKind.END}:
            self._confirm(figure)
            self._keep(number, bytes(memoryview(frame)[_HEAD.size :]), last=kind == FrameKind.END)
        elif kind == FrameKind.ACK:
            self._confirm(number)
            self._allow(figure)
        elif kind == FrameKind.PING:
            self._answers.append(_HEAD.pack(FrameKind.PONG, 0, 0))
        elif kind != FrameKind.PONG:
            raise BadFrame("a frame of no known kind")

    def _meet(self, confirmed: int, limit: int) -> None:
        if self._met:
            raise BadFrame("a second greeting on one connection")
        self._met = True
        self._confirm(confirmed)
        self._allow(limit)

    def _confirm(self, number: int) -> None:
        if number > self._written:
            raise BadFrame("a message is confirmed that was never written")
        while self._unconfirmed and self._unconfirmed[0].number <= number:
            self._confirmed_bytes = self._unconfirmed.popleft().until
            self._next = max(0, self._next - 1)

    def _allow(self, limit: int) -> None:
        # The limit never falls; a late frame may carry an older figure.
        self._limit = max(self._limit, limit)

    def _keep(self, number: int, payload: bytes, *, last: bool) -> None:
        if number != self._received + 1 or self._ended:
            raise BadFrame(f"message {number} came after {self._received}")
        if len(payload) > LARGEST_MESSAGE_BYTES:
            raise BadFrame("a message is too large")
        size = self._received_bytes + cost(payload)
        if size > self._reported_limit:
            raise BadFrame("more came than there was room for")
        self._received, self._received_bytes, self._ended = number, size, last
        self._inbox.append(Message(payload, last))

    def _should_report(self) -> bool:
        if self._ended and self._reported < self._received:
            return True
        return self._taken_bytes + self._window - self._reported_limit >= self._window // 2

    def _figures(self, kind: FrameKind) -> bytes:
        self._reported = self._received
        self._reported_limit = self._taken_bytes + self._window
        return _HEAD.pack(kind, self._received, self._reported_limit)
