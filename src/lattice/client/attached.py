"""A program in a job as an object: write to it, read from it, wait for its end. Blocking.

Use one thread at a time: reading and writing share the connection. Nothing happens between calls.
If the object is unused for long, the server drops the connection, and the next call makes a new
one. To avoid that, read from it now and then.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.client.outcome import exit_code
from lattice.client.terminal import TerminalLink
from lattice.domain.terminal import (
    MOST_BYTES,
    Errors,
    Output,
    Signal,
    Started,
    Stdin,
    StdinEnd,
    TerminalSignal,
)
from lattice.features.attach.model import Opened

_FAREWELL_S = 1.0
_HELD_BYTES = 1024 * 1024
"""The limit of unread output and errors each; beyond it the program waits."""


class Received:
    """Data of the other end that was not read yet."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.opened: Opened | None = None
        """Where it is, as the server reported."""
        self.started: Started | None = None
        """What runs there."""

    def take_from(self, link: TerminalLink) -> bool:
        """Take as much as there is room for; True if something came."""
        came = bool(link.events)
        while len(self.output) < _HELD_BYTES and len(self.errors) < _HELD_BYTES:
            message = link.take()
            if message is None:
                break
            came = True
            if isinstance(message, Output):
                self.output += message.text
            elif isinstance(message, Errors):
                self.errors += message.text
            elif isinstance(message, Started):
                self.started = message
        while link.events:
            event = link.events.popleft()
            if isinstance(event, Opened):
                self.opened = event
        return came

    def drop(self) -> None:
        """Discard it; it will not be read."""
        self.output.clear()
        self.errors.clear()


class RemoteTerminal:
    """Used with `with`; leaving the block hangs up, which ends what still runs."""

    def __init__(self, link: TerminalLink, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._received = Received()
        link.open()

    @property
    def opened(self) -> Opened | None:
        """Where it is, as the server reported; None before that."""
        return self._received.opened

    @property
    def started(self) -> Started | None:
        """What runs there, as the node reported."""
        return self._received.started

    def write(self, text: bytes) -> None:
        """Type it, or write it to the pipe; waits while the program does not read."""
        for at in range(0, len(text), MOST_BYTES):
            self._until(lambda: self._link.writable or self._ended)
            if self._ended:
                return
            self._link.write(Stdin(text[at : at + MOST_BYTES]))

    def write_eof(self) -> None:
        """Nothing more will be written."""
        if self._link.writable:
            self._link.write(StdinEnd())

    def read(self, timeout_s: float | None = None) -> bytes:
        """Available output, or the next; empty at the end. Raises `TimeoutError`."""
        return self._read(self._received.output, timeout_s)

    def read_errors(self, timeout_s: float | None = None) -> bytes:
        """The same for standard error, which is separate if there is no terminal."""
        return self._read(self._received.errors, timeout_s)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        self._link.resize(rows, columns)

    def signal(self, name: str) -> None:
        """Send `INT`, `TERM`, … to what runs in the foreground."""
        if self._link.writable:
            self._link.write(Signal(TerminalSignal(name)))

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises what else ended it, or `TimeoutError`.

        Output that was not read by then is discarded.
        """

        def over() -> bool:
            self._received.drop()
            return self._ended

        self._until(over, timeout_s)
        return exit_code(self._link.exit, self._link.end)

    def close(self) -> None:
        """Hang up, which ends what still runs."""
        if self._link.writable and not self._ended:
            self._link.write(Signal(TerminalSignal.HUP))
            # It ends either way: the job, the connection or the time may end first.
            with suppress(LatticeError, TimeoutError):
                self.wait(_FAREWELL_S)
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _ended(self) -> bool:
        return self._link.exit is not None or self._link.end is not None

    def _read(self, held: bytearray, timeout_s: float | None) -> bytes:
        self._until(lambda: bool(held) or self._ended, timeout_s)
        found = bytes(held)
        held.clear()
        return found

    def _until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> None:
        link = self._link
        end = None if timeout_s is None else self._clock.monotonic() + timeout_s
        self._received.take_from(link)
        while not holds():
            wait_s = link.wait_s
            if end is not None:
                left_s = end - self._clock.monotonic()
                if left_s <= 0:
                    raise TimeoutError("nothing came in time")
                wait_s = min(wait_s, left_s)
            select.select(link.reading, link.writing, [], wait_s)
            link.turn()
            self._received.take_from(link)
