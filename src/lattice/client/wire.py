"""One WebSocket on a socket that never blocks: sends at once what it can, reads what is there.

Not who connects, and not what the messages mean.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from lattice.base.websocket import (
    BadSocket,
    FrameReader,
    Opcode,
    read_close,
    write_close,
    write_frame,
)

_PIECE_BYTES = 256 * 1024
_PIECES_A_TURN = 4
"""Then others get their turn, however much has come."""
_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class WireClosed(OSError):
    """The other side hung up; the words say how."""


class Wire:
    """`send` and `receive` never wait; `wants_write` says whether there is something left."""

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
        """Why nothing more will come; raised once all that came before has been taken."""
        self.heard_at = monotonic()

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    @property
    def wants_write(self) -> bool:
        """True if what was sent has not all gone out."""
        return bool(self._out)

    @property
    def unread(self) -> bool:
        """True if something has come that `select` can't see."""
        if self._held:
            return True
        return isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0

    def send_text(self, text: str) -> None:
        """A text message."""
        self._send(write_frame(Opcode.TEXT, text.encode()))

    def send_frames(self, frames: list[bytes]) -> None:
        """Binary messages, in one go."""
        self._send(b"".join([write_frame(Opcode.BINARY, each) for each in frames]))

    def ping(self) -> None:
        """Have the other side say something."""
        self._send(write_frame(Opcode.PING))

    def _send(self, raw: bytes) -> None:
        self._out += raw
        self.flush()

    def flush(self) -> None:
        """Whatever goes out now; raises OSError if nothing ever will."""
        try:
            while self._out:
                with memoryview(self._out) as view:
                    sent = self._connection.send(view[:_PIECE_BYTES])
                del self._out[:sent]
        except _WAIT:
            return

    def receive(self) -> list[tuple[Opcode, bytes]]:
        """Text and binary messages that have come; raises OSError once they can't any more."""
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
            code, words = read_close(payload)
            raise WireClosed(f"the server closed the connection ({words or code})")
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
        self.heard_at = self._monotonic()
        return piece

    def close(self, code: int = 1000) -> None:
        """Say goodbye as far as that goes without waiting, and hang up. Once is enough."""
        with suppress(OSError):  # it may be gone already
            self._send(write_close(code))
        self._connection.close()
