"""A program in a job as an object: write to it, read from it, wait for its end."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress
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
    TerminalMessage,
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


class _Attachment:
    """What both forms share."""

    def __init__(self, link: TerminalLink) -> None:
        self._link = link
        self._received = Received()

    @property
    def opened(self) -> Opened | None:
        """Where it is, as the server reported; None before that."""
        return self._received.opened

    @property
    def started(self) -> Started | None:
        """What runs there, as the node reported."""
        return self._received.started

    @property
    def _ended(self) -> bool:
        return self._link.exit is not None or self._link.end is not None


class RemoteTerminal(_Attachment):
    """Blocking; used with `with`. Leaving the block hangs up, which ends what still runs.

    Use one thread at a time: reading and writing share the connection. Nothing happens between
    calls. If the object is unused for long, the server drops the connection, and the next call
    makes a new one. To avoid that, read from it now and then.
    """

    def __init__(self, link: TerminalLink, clock: Clock) -> None:
        super().__init__(link)
        self._clock = clock
        link.open()

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

    def __exit__(self, *_: object) -> None:
        self.close()

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


class AsyncRemoteTerminal(_Attachment):
    """For asyncio; used with `async with`. Leaving the block hangs up, which ends what still runs.

    Reading, writing and waiting may run concurrently in one event loop. A task drives the link from
    the first `async with` to the end of the block.
    """

    def __init__(self, link: TerminalLink) -> None:
        super().__init__(link)
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._turns: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # In a thread, because the first connection is made with blocking calls.
        await asyncio.to_thread(self._link.open)
        self._turns = asyncio.create_task(self._give_turns(), name="terminal")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def write(self, text: bytes) -> None:
        """Type it, or write it to the pipe; waits while the program does not read."""
        for at in range(0, len(text), MOST_BYTES):
            await self._until(lambda: self._link.writable or self._ended)
            self._send(Stdin(text[at : at + MOST_BYTES]))

    async def write_eof(self) -> None:
        """Nothing more will be written."""
        self._send(StdinEnd())

    async def read(self) -> bytes:
        """Available output, or the next; empty at the end."""
        return await self._read(self._received.output)

    async def read_errors(self) -> bytes:
        """The same for standard error, which is separate if there is no terminal."""
        return await self._read(self._received.errors)

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        self._link.resize(rows, columns)
        self._wake.set()

    async def signal(self, name: str) -> None:
        """Send `INT`, `TERM`, … to what runs in the foreground."""
        self._send(Signal(TerminalSignal(name)))

    async def wait(self) -> int:
        """Wait for the end and return the exit code. Raises what else ended it.

        Output that was not read by then is discarded.
        """

        def over() -> bool:
            self._received.drop()
            self._wake.set()
            return self._ended

        await self._until(over)
        return exit_code(self._link.exit, self._link.end)

    async def close(self) -> None:
        """Hang up, which ends what still runs."""
        if not self._ended:
            self._send(Signal(TerminalSignal.HUP))
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._until(lambda: self._ended)
        if self._turns is not None:
            self._turns.cancel()
            with suppress(asyncio.CancelledError):
                await self._turns
        self._link.close()

    def _send(self, message: TerminalMessage) -> None:
        if self._link.writable:
            self._link.write(message)
            self._wake.set()

    async def _read(self, held: bytearray) -> bytes:
        await self._until(lambda: bool(held) or self._ended)
        found = bytes(held)
        held.clear()
        # There is room again.
        self._wake.set()
        return found

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)

    async def _give_turns(self) -> None:
        link = self._link
        while not self._ended:
            await self._readiness()
            link.turn()
            self._received.take_from(link)
            async with self._changed:
                self._changed.notify_all()
        # Output from before the end is still to be read, as far as there is room.
        while self._received.take_from(link):
            async with self._changed:
                self._changed.notify_all()
            self._wake.clear()
            await self._wake.wait()

    async def _readiness(self) -> None:
        link, loop = self._link, asyncio.get_running_loop()
        self._wake.clear()
        reading = [each.fileno() for each in link.reading]
        writing = [each.fileno() for each in link.writing]
        for descriptor in reading:
            loop.add_reader(descriptor, self._wake.set)
        for descriptor in writing:
            loop.add_writer(descriptor, self._wake.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(link.wait_s):
                    await self._wake.wait()
        finally:
            for descriptor in reading:
                loop.remove_reader(descriptor)
            for descriptor in writing:
                loop.remove_writer(descriptor)
