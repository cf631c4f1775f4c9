"""The client side of a WebSocket (RFC 6455): bytes in, messages out. Pure: no I/O, no clock.

It is strict and bounded. What a server may not send ends the connection. Examples are a masked
frame, reserved bits, a split control frame, text that is no UTF-8, and a message over the limit. It
offers no extensions, so none can be used. Fragments are joined within the same limit.
"""

from __future__ import annotations

import os
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from enum import IntEnum
from hashlib import sha1

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LONGEST_CONTROL = 125
_SHORT, _LONG = 126, 127


class BadSocket(OSError):
    """The server breaks the WebSocket protocol, so nothing more from it can be trusted."""


class Opcode(IntEnum):
    """The kind of a frame."""

    MORE = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_OPCODES = frozenset(Opcode)
_Frame = tuple[Opcode, bytes]


class Upgrade:
    """One upgrade request: the headers to send, and the check of the response."""

    def __init__(self, protocol: str, *, key: bytes | None = None) -> None:
        self._protocol = protocol
        self._key = b64encode(key or os.urandom(16))

    def headers(self) -> dict[str, str]:
        """Headers to send besides those of any request."""
        return {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": self._key.decode(),
            "Sec-WebSocket-Protocol": self._protocol,
        }

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `BadSocket` unless a 101 with these headers answers this request."""
        # Not a secret: it only shows that the response is not a cached one (RFC 6455, 1.3).
        proof = b64encode(sha1(self._key + _MAGIC, usedforsecurity=False).digest()).decode()
        tokens = {each.strip().lower() for each in headers.get("connection", "").split(",")}
        if headers.get("upgrade", "").lower() != "websocket" or "upgrade" not in tokens:
            raise BadSocket("the server switched to something else than a WebSocket")
        if headers.get("sec-websocket-accept") != proof:
            raise BadSocket("the server's answer is not to our question")
        if headers.get("sec-websocket-protocol", "") != self._protocol:
            raise BadSocket(f"the server does not speak {self._protocol}")
        if headers.get("sec-websocket-extensions"):
            raise BadSocket("the server uses an extension nobody offered")


def write_frame(opcode: Opcode, payload: bytes = b"", *, mask: bytes | None = None) -> bytes:
    """One whole client frame, final and masked."""
    size = len(payload)
    if opcode >= Opcode.CLOSE and size > _LONGEST_CONTROL:
        raise ValueError("a control frame is short")
    first = 0x80 | opcode
    if size < _SHORT:
        head = bytes((first, 0x80 | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | _SHORT, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | _LONG, size)
    mask = mask or os.urandom(4)
    return head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    """The payload xor the repeated mask. One large integer, because a loop would take seconds."""
    size = len(payload)
    if not size:
        return b""
    pad = mask * (size // 4 + 1)
    mixed = int.from_bytes(payload, "little") ^ int.from_bytes(pad[:size], "little")
    return mixed.to_bytes(size, "little")


def write_close(code: int = 1000, reason: str = "") -> bytes:
    """A close frame. The reason is cut to 120 bytes."""
    return write_frame(Opcode.CLOSE, struct.pack("!H", code) + reason.encode()[:120])


def read_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame; 1005 means no code, as in the RFC."""
    if not payload:
        return 1005, ""
    if len(payload) < 2:
        raise BadSocket("a farewell with half a code")
    (code,) = struct.unpack_from("!H", payload)
    return code, payload[2:].decode(errors="replace")


class FrameReader:
    """Takes bytes as they come; `feed` yields complete messages and control frames."""

    def __init__(self, largest_bytes: int) -> None:
        self._largest = largest_bytes
        self._held = bytearray()
        self._kind: Opcode | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[_Frame]:
        """The messages that are complete now. After `BadSocket` the reader must not be used again.

        Read it to its end: messages that are not read come with the next piece.
        """
        held = self._held
        held += piece
        at = 0
        try:
            while (frame := self._frame(at)) is not None:
                final, opcode, begin, at = frame
                message = self._message(opcode, bytes(memoryview(held)[begin:at]), final=final)
                if message is not None:
                    yield message
        finally:
            del held[:at]

    def _frame(self, at: int) -> tuple[bool, Opcode, int, int] | None:
        """The next frame's head and the range of its payload; None until all of it has come."""
        held = self._held
        if len(held) - at < 2:
            return None
        first, second = held[at], held[at + 1]
        opcode = first & 0x0F
        final = bool(first & 0x80)
        if first & 0x70 or opcode not in _OPCODES:
            raise BadSocket("a frame of no known kind")
        if second & 0x80:
            raise BadSocket("a server's frame is masked")
        size, begin = second, at + 2
        if opcode >= Opcode.CLOSE and (size > _LONGEST_CONTROL or not final):
            raise BadSocket("a control frame that is long or in parts")
        if size >= _SHORT:
            width = 2 if size == _SHORT else 8
            if len(held) < begin + width:
                return None
            size = int.from_bytes(held[begin : begin + width], "big")
            begin += width
            if size < _SHORT or (width == 8 and size < 1 << 16):
                raise BadSocket("a length that could be shorter")
        if size > self._largest:
            raise BadSocket("a message that is too large")
        end = begin + size
        return (final, Opcode(opcode), begin, end) if len(held) >= end else None

    def _message(self, opcode: Opcode, payload: bytes, *, final: bool) -> _Frame | None:
        if opcode >= Opcode.CLOSE:
            return opcode, payload
        if (opcode is Opcode.MORE) is (self._kind is None):
            raise BadSocket("the parts of a message are mixed up")
        if opcode is not Opcode.MORE:
            if final:
                return _checked(opcode, payload)
            self._kind = opcode
        self._size += len(payload)
        if self._size > self._largest:
            raise BadSocket("a message that is too large")
        # Empty parts are not kept, because the limit does not bound their number.
        if payload:
            self._parts.append(payload)
        if not final:
            return None
        whole, kind = b"".join(self._parts), self._kind
        self._kind, self._parts, self._size = None, [], 0
        assert kind is not None
        return _checked(kind, whole)


def _checked(kind: Opcode, payload: bytes) -> _Frame:
    if kind is Opcode.TEXT:
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise BadSocket("text that is no UTF-8") from None
    return kind, payload
