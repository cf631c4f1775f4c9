"""A bare relay of the shape of `lattice attach`, with a terminal at its end.

The same hops and certificates: a Python client that puts its terminal into raw mode and passes what
is typed over TLS; a relay that passes it on over gRPC with certificates of both ends; a process on
the node with a pseudo terminal. No resume, no numbers, no job, no user, and nobody is asked.

    python -m bench.attach_bare relay|node|client FOLDER
"""

from __future__ import annotations

import asyncio
import os
import pty
import select
import socket
import ssl
import struct
import subprocess
import sys
import termios
import tty
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from lab.addresses import CONTROL
from lattice.wire.carriers import EOF, STREAM_OPTIONS

GRPC_PORT, TLS_PORT = 28993, 28994
_METHOD = "/bare.Terminal/Node"
_HEAD = struct.Struct("!I")
_READ = 32 * 1024


async def node(folder: str) -> None:
    """A terminal that echoes, at the end of one stream."""
    leader, follower = pty.openpty()
    subprocess.Popen(["cat"], stdin=follower, stdout=subprocess.DEVNULL)
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    os.set_blocking(leader, False)
    loop.add_reader(leader, lambda: typed.put_nowait(os.read(leader, _READ)))
    credentials = grpc.ssl_channel_credentials(*_pem(folder))
    options = list(STREAM_OPTIONS)
    async with aio.secure_channel(f"{CONTROL}:{GRPC_PORT}", credentials, options) as channel:
        dial: Any = channel.stream_stream
        call = dial(_METHOD)()
        await call.write(b"")

        async def back() -> None:
            while True:
                await call.write(await typed.get())

        writing = asyncio.create_task(back())
        while (message := await call.read()) is not EOF:
            os.write(leader, message)
        writing.cancel()


async def relay(folder: str) -> None:
    """Between one client and one node."""
    here: asyncio.Queue[bytes] = asyncio.Queue()
    client: list[asyncio.StreamWriter] = []

    async def from_node(_requests: Any, context: Any) -> None:
        async def there() -> None:
            while True:
                await context.write(await here.get())

        writing = asyncio.create_task(there())
        while (message := await context.read()) is not EOF:
            for each in client:
                each.write(_HEAD.pack(len(message)) + message)
                await each.drain()
        writing.cancel()

    async def from_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                here.put_nowait(await reader.readexactly(size))

    ca, key, certificate = _pem(folder)
    server = aio.server(options=list(STREAM_OPTIONS))
    handler = {"Node": grpc.stream_stream_rpc_method_handler(from_node)}
    handlers = grpc.method_handlers_generic_handler("bare.Terminal", handler)
    server.add_generic_rpc_handlers((handlers,))
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    server.add_secure_port(f"{CONTROL}:{GRPC_PORT}", credentials)
    await server.start()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(f"{folder}/bare.crt", f"{folder}/bare.key")
    listening = await asyncio.start_server(from_client, CONTROL, TLS_PORT, ssl=context)
    async with listening:
        await listening.serve_forever()


async def client(folder: str) -> None:
    """Standard input and output, raw, over one connection."""
    context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    plain = socket.create_connection((CONTROL, TLS_PORT))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line = context.wrap_socket(plain, server_hostname=CONTROL)
    line.setblocking(False)
    tty.setraw(0, termios.TCSANOW)
    os.write(1, b"ready$ ")
    held = b""
    both: list[int | ssl.SSLSocket] = [0, line]
    while True:
        ready, _, _ = select.select(both, [], [])
        if 0 in ready:
            text = os.read(0, _READ)
            line.sendall(_HEAD.pack(len(text)) + text)
        with suppress(ssl.SSLWantReadError):
            while text := line.recv(_READ):
                held += text
        while len(held) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(held)
            if len(held) < _HEAD.size + size:
                break
            os.write(1, held[_HEAD.size : _HEAD.size + size])
            held = held[_HEAD.size + size :]


def _pem(folder: str) -> tuple[bytes, bytes, bytes]:
    names = ("ca.crt", "bare.key", "bare.crt")
    ca, key, certificate = ((Path(folder) / each).read_bytes() for each in names)
    return ca, key, certificate


if __name__ == "__main__":
    asyncio.run({"node": node, "relay": relay, "client": client}[sys.argv[1]](sys.argv[2]))
