"""A service at a terminal through real servers, over their WebSocket, that tells all it sees.

    python -m tests.e2e.attach_client JOB SERVER[,SERVER…] CA-FILE START-JSON

The token is in LATTICE_TOKEN. A line on its standard input is typed (JSON: a text), or asked for:
`{"cut": true}` drops the connection, `{"token": …}` sends another token, `{"leave": true}` closes
for good. Every event is a JSON line on its standard output: `word`, `message`, `dialled`, `lost`,
`refused`. It resumes at the next server whenever a connection is lost, and ends when the server has
said a last word or the shell has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from lattice.domain.stream import CarrierLost
from lattice.domain.terminal import Exit, Stdin, read_message, write_message
from lattice.features.attach.model import PROTOCOL, AttachToken, Start, write_word
from lattice.wire.conduit import Conduit, ConduitClosed

_BEGUN = time.monotonic()


def tell(**event: Any) -> None:
    event["at_s"] = round(time.monotonic() - _BEGUN, 3)
    print(json.dumps(event), flush=True)


class _Line:
    """A WebSocket as a carrier; its words are told."""

    def __init__(self, line: ClientConnection) -> None:
        self._line = line
        self.over = False

    async def send(self, frame: bytes) -> None:
        try:
            await self._line.send(frame)
        except ConnectionClosed as closed:
            raise CarrierLost(str(closed)) from None

    async def receive(self) -> bytes:
        while True:
            try:
                message = await self._line.recv()
            except ConnectionClosed as closed:
                raise CarrierLost(str(closed)) from None
            if isinstance(message, bytes):
                return message
            word = json.loads(message)
            tell(word=word)
            self.over = self.over or word["type"] in {"error", "ended"}


class AttachClient:
    def __init__(self, job: str, servers: list[str], authority: Path, start: Start) -> None:
        self.conduit = Conduit()
        self._job = job
        self._servers = servers
        self._tls = ssl.create_default_context(cafile=authority)
        self._start = start
        self._line: ClientConnection | None = None
        self.left = False

    async def run(self) -> None:
        turn = 0
        while not self.conduit.over and not self.left:
            server = self._servers[turn % len(self._servers)]
            try:
                if await self._once(server):
                    return
            except (CarrierLost, OSError, TimeoutError, ConnectionClosed) as lost:
                tell(lost=str(lost), server=server)
            turn += 1
            await asyncio.sleep(0.2)

    async def _once(self, server: str) -> bool:
        """True if there is no way back."""
        try:
            async with connect(
                f"{server.replace('https', 'wss')}/v1/allocations/{self._job}/attach",
                additional_headers={"Authorization": f"Bearer {os.environ['LATTICE_TOKEN']}"},
                subprotocols=[Subprotocol(PROTOCOL)],
                compression=None,
                proxy=None,
                ssl=self._tls,
                open_timeout=3,
                max_size=None,
                ping_interval=None,
            ) as socket:
                self._line = socket
                start = self._start._replace(resume=self.conduit.begun)
                await socket.send(write_word(start))
                tell(dialled=server, resume=start.resume)
                line = _Line(socket)
                try:
                    await self.conduit.carry(line)
                except CarrierLost:
                    if line.over:
                        return True
                    raise
                await socket.close(1000)
                return True
        except InvalidStatus as refused:
            tell(refused=refused.response.status_code, body=refused.response.body.decode())
            return True

    async def read(self) -> None:
        try:
            while (payload := await self.conduit.receive()) is not None:
                message = read_message(payload)
                facts = {
                    name: value.decode("latin-1") if isinstance(value, bytes) else value
                    for name, value in message._asdict().items()
                }
                tell(message=type(message).__name__, **facts)
                if isinstance(message, Exit):
                    await self.conduit.send(b"", last=True)
        except ConduitClosed:
            return

    async def obey(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            if isinstance(order, str):
                await self.conduit.send(write_message(Stdin(order.encode("latin-1"))))
            elif "cut" in order and self._line is not None:
                self._line.transport.abort()
            elif "leave" in order and self._line is not None:
                self.left = True
                await self._line.close(1000)
            elif "token" in order and self._line is not None:
                await self._line.send(write_word(AttachToken(token=order["token"])))


async def main() -> int:
    job, servers, authority, start = sys.argv[1:]
    told = json.loads(start)
    told["command"] = tuple(told.get("command", ()))
    client = AttachClient(job, servers.split(","), Path(authority), Start(**told))
    others = [asyncio.create_task(client.read()), asyncio.create_task(client.obey())]
    await client.run()
    await asyncio.sleep(0.05)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
