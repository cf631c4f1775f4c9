"""A root helper that is none: it answers at a real socket what a test tells it to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from lattice.base import packet
from lattice.domain.privileged import Answer, write_answer

Reply: TypeAlias = Callable[[bytes], tuple[Answer, Sequence[int]]]


@asynccontextmanager
async def helper_at(path: Path, reply: Reply) -> AsyncIterator[Path]:
    """Until the context ends. The descriptors of an answer are closed here once they are sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(str(path))
        door.listen(16)
        door.setblocking(False)
        serving = asyncio.create_task(_serve(door, reply))
        try:
            yield path
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def _serve(door: socket.socket, reply: Reply) -> None:
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(door)
        with connection:
            request = await loop.sock_recv(connection, packet.LARGEST_BYTES)
            answer, passed = reply(request)
            packet.send(connection, write_answer(answer), passed, most_descriptors=8)
            packet.close_all(passed)
