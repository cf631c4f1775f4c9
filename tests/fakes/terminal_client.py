"""The client's end of a terminal over a packet socket, turned by hand: what a person would see."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from lattice.domain.pipe import Pipe
from lattice.domain.terminal import (
    MOST_BYTES,
    Errors,
    Exit,
    Output,
    Started,
    Stdin,
    TerminalMessage,
    read_message,
    write_message,
)
from tests.eventually import eventually

_LARGEST = 128 * 1024


def _nothing() -> None:
    """Nobody else has to be turned."""


class TerminalClient:
    """`turn` moves whatever can move; `until` goes on until something is so."""

    def __init__(self, connection: socket.socket, drive: Callable[[], None] = _nothing) -> None:
        """`drive` turns the other end where that is no process of its own."""
        self.pipe = Pipe()
        self.output = bytearray()
        self.errors = bytearray()
        self.started: Started | None = None
        self.exit: Exit | None = None
        self.closed = False
        self._unwritten: list[bytes] = []
        self._said_last = False
        self._drive = drive
        self._connection = connection
        self.connect(connection)

    def connect(self, connection: socket.socket) -> None:
        """Go on over this one."""
        if connection is not self._connection:
            self._connection.close()
        connection.setblocking(False)
        self._connection = connection
        self._frames: list[bytes] = []
        self.closed = False
        self.pipe.connected()

    def cut(self) -> None:
        """The connection is gone, from one byte to the next."""
        self._connection.close()
        self.closed = True

    def say(self, message: TerminalMessage) -> None:
        self._unwritten.append(write_message(message))

    def type(self, text: bytes) -> None:
        for at in range(0, len(text), MOST_BYTES):
            self.say(Stdin(text[at : at + MOST_BYTES]))

    def hang_up(self) -> None:
        """Say the last word, before the other end did or after."""
        if not self._said_last:
            self._said_last = True
            self.pipe.write(b"", last=True)

    def turn(self, wait_s: float = 0.0) -> None:
        while self._unwritten and self.pipe.writable:
            self.pipe.write(self._unwritten.pop(0))
        if not self.closed:
            self._send()
            readable, _, _ = select.select([self._connection], [], [], wait_s)
            if readable:
                self._receive()
                self._send()
        self._drive()

    def until(self, so: Callable[[], bool]) -> None:
        def turned() -> tuple[bool, bytes, Exit | None]:
            self.turn(0.01)
            return so(), bytes(self.output[-2000:]), self.exit

        if not so():
            eventually(turned, lambda seen: seen[0], pause_s=0.0)

    def see(self, text: bytes) -> bytes:
        """Everything up to and with this text, which is then read."""
        self.until(lambda: text in self.output)
        at = self.output.index(text) + len(text)
        seen = bytes(self.output[:at])
        del self.output[:at]
        return seen

    def end(self) -> Exit:
        self.until(lambda: self.exit is not None)
        assert self.exit is not None
        return self.exit

    def _send(self) -> None:
        while not self.closed:
            if not self._frames:
                self._frames = self.pipe.frames() if self.pipe.ready else []
            if not self._frames:
                return
            try:
                self._connection.send(self._frames[0])
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            self._frames.pop(0)

    def _receive(self) -> None:
        while not self.closed:
            try:
                frame = self._connection.recv(_LARGEST)
            except BlockingIOError:
                break
            except OSError:
                frame = b""
            if not frame:
                self.closed = True
                break
            self.pipe.receive(frame)
        while (taken := self.pipe.take()) is not None:
            self._take(read_message(taken.payload))

    def _take(self, message: TerminalMessage) -> None:
        if isinstance(message, Output):
            self.output += message.text
        elif isinstance(message, Errors):
            self.errors += message.text
        elif isinstance(message, Started):
            self.started = message
        elif isinstance(message, Exit):
            self.exit = message
            self.hang_up()
