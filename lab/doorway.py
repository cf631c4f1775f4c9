"""A door into the lab's control network for programs outside it: loopback ports that lead inside.

For libraries that open sockets from threads of their own (gRPC), which `Network.entered` can't
move. A door can be shut: bytes then go neither way, silently, as behind a cut cable.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from lab.network import Network

_CHUNK_BYTES = 64 * 1024

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Doorway:
    """`addresses` outside lead to the given loopback ports inside, in the same order."""

    def __init__(self, network: Network, ports: Sequence[int]) -> None:
        self._network = network
        self._ports = tuple(ports)
        self._doors = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        self.addresses = [f"127.0.0.1:{door.getsockname()[1]}" for door in self._doors]
        self._shut: set[int] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doorway", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tell(self._stop.set)
        self._thread.join()

    def shut(self, *numbers: int) -> None:
        """These doors, or all of them."""
        self._tell(lambda: self._set(numbers or range(len(self._ports)), shut=True))

    def open(self, *numbers: int) -> None:
        self._tell(lambda: self._set(numbers or range(len(self._ports)), shut=False))

    def _set(self, numbers: Sequence[int], *, shut: bool) -> None:
        self._shut = self._shut | set(numbers) if shut else self._shut - set(numbers)
        self._changed.set()
        self._changed = asyncio.Event()

    def _tell(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def told() -> None:
            act()
            done.set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(told)
        done.wait()

    def _run(self) -> None:
        with self._network.entered():
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        servers = [
            await asyncio.start_server(self._handler(number), sock=door)
            for number, door in enumerate(self._doors)
        ]
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()

    def _handler(self, number: int) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._while_open(number)
                inner = await asyncio.open_connection("127.0.0.1", self._ports[number])
            except OSError:
                writer.transport.abort()
                return
            ways = [
                asyncio.create_task(self._carry(number, reader, inner[1])),
                asyncio.create_task(self._carry(number, inner[0], writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                for end in (writer, inner[1]):
                    end.transport.abort()

        return handle

    async def _carry(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._while_open(number)
                writer.write(chunk)
                await writer.drain()

    async def _while_open(self, number: int) -> None:
        while number in self._shut:
            await self._changed.wait()
