"""The same for asyncio: reading, writing and waiting may run concurrently in one event loop.

A task drives the link from the first `async with` to the end of the block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from lattice.client.attached import Received
from lattice.client.outcome import exit_code
from lattice.client.terminal import TerminalLink
from lattice.domain.terminal import (
    MOST_BYTES,
    Signal,
    Started,
    Stdin,
    StdinEnd,
    TerminalMessage,
    TerminalSignal,
)
from lattice.features.attach.model import Opened

_FAREWELL_S = 1.0


class AsyncRemoteTerminal:
    """Used with `async with`; leaving the block hangs up, which ends what still runs."""

    def __init__(self, link: TerminalLink) -> None:
        self._link = link
        self._received = Received()
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._turns: asyncio.Task[None] | None = None

    @property
    def opened(self) -> Opened | None:
        """Where it is, as the server reported; None before that."""
        return self._received.opened

    @property
    def started(self) -> Started | None:
        """What runs there, as the node reported."""
        return self._received.started

    async def __aenter__(self) -> Self:
        # In a thread, because the first connection is made with blocking calls.
        await asyncio.to_thread(self._link.open)
        self._turns = asyncio.create_task(self._give_turns(), name="terminal")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def write(self, text: bytes) -> None:
        """Type it, or write it to the pipe; waits while the program does not read."""
        for at in range(0, len(text), MOST_BYTES):
            await self._until(lambda: self._link.writable or self._ended)
            self._say(Stdin(text[at : at + MOST_BYTES]))

    async def write_eof(self) -> None:
        """Nothing more will be written."""
        self._say(StdinEnd())

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
        self._say(Signal(TerminalSignal(name)))

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
            self._say(Signal(TerminalSignal.HUP))
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._until(lambda: self._ended)
        if self._turns is not None:
            self._turns.cancel()
            with suppress(asyncio.CancelledError):
                await self._turns
        self._link.close()

    @property
    def _ended(self) -> bool:
        return self._link.exit is not None or self._link.end is not None

    def _say(self, message: TerminalMessage) -> None:
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
