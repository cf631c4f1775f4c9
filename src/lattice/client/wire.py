"""One WebSocket on a non-blocking socket: sends what it can, reads what has come.

It neither connects nor interprets messages.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from lattice.base.fast_start.websocket import (
    BadSocket,
    FrameReader,
    Opcode,
    read_close,
    write_close,
    write_frame,
)

_PIECE_BYTES = 256 * 1024
_PIECES_A_TURN = 4
"""After that, others get their turn, however much has come."""
_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class WireClosed(OSError):
    """The other side closed the connection; the text gives the reason."""


class Wire:
    """`send` and `receive` never block; `wants_write` is True if something is left to send."""

    def __init__(
        self,
        connection: socket.socket,
        held: bytes,
        *,
        largest_bytes: int,
        monotonic: Callable[[], float],
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._held = held
        self._reader = FrameReader(largest_bytes)
        self._out = bytearray()
        self._monotonic = monotonic
        self._broken: OSError | None = None
        """Why nothing more will come; raised once everything before it has been taken."""
        self.last_received_at = monotonic()

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    @property
    def wants_write(self) -> bool:
        """True if not everything was sent yet."""
        return bool(self._out)

    @property
    def unread(self) -> bool:
        """True if there is data that `select` can't see."""
        if self._held:
            return True
        return isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0

    def send_text(self, text: str) -> None:
        """Send a text message."""
        self._send(write_frame(Opcode.TEXT, text.encode()))

    def send_frames(self, frames: list[bytes]) -> None:
        """Send binary messages together."""
        self._send(b"".join([write_frame(Opcode.BINARY, each) for each in frames]))

    def ping(self) -> None:
        """Make the other side reply."""
        self._send(write_frame(Opcode.PING))

    def _send(self, raw: bytes) -> None:
        self._out += raw
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now; raises `OSError` if the connection is broken."""
        try:
            while self._out:
                with memoryview(self._out) as view:
                    sent = self._connection.send(view[:_PIECE_BYTES])
                del self._out[:sent]
        except _WAIT:
            return

    def receive(self) -> list[tuple[Opcode, bytes]]:
        """The text and binary messages that have come; raises `OSError` when none can follow."""
        found: list[tuple[Opcode, bytes]] = []
        try:
            for _ in range(_PIECES_A_TURN):
                if self._broken is not None:
                    break
                piece = self._piece()
                if piece is None:
                    break
                for kind, payload in self._reader.feed(piece):
                    self._sort(kind, payload, found)
        except OSError as error:
            self._broken = error
        if self._broken is not None and not found:
            raise self._broken
        return found

    def _sort(self, kind: Opcode, payload: bytes, found: list[tuple[Opcode, bytes]]) -> None:
        if kind is Opcode.PING:
            self._send(write_frame(Opcode.PONG, payload))
        elif kind is Opcode.CLOSE:
            code, text = read_close(payload)
            raise WireClosed(f"the server closed the connection ({text or code})")
        elif kind is not Opcode.PONG:
            found.append((kind, payload))

    def _piece(self) -> bytes | None:
        if self._held:
            piece, self._held = self._held, b""
            return piece
        try:
            piece = self._connection.recv(_PIECE_BYTES)
        except _WAIT:
            return None
        except ssl.SSLEOFError:
            piece = b""
        if not piece:
            raise BadSocket("the connection broke off")
        self.last_received_at = self._monotonic()
        return piece

    def close(self, code: int = 1000) -> None:
        """Send a close frame if that is possible without blocking, and close the socket."""
        with suppress(OSError):  # it may be closed already
            self._send(write_close(code))
        self._connection.close()
