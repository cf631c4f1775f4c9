"""A service at a stream through real servers: echoes until told to stop, and counts what it saw.

    python -m tests.e2e.echo_client NODE SECONDS SERVER[,SERVER…] CA-FILE    (token: LATTICE_TOKEN)

Every message carries its number and a checksum of its content; one that comes back changed, twice
or out of turn ends the program with status 1. It is resumed at the next server whenever a
connection is lost. Prints one JSON object at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from lattice.domain.stream import CarrierLost
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.conduit import Conduit
from lattice.wire.v1 import link_pb2 as pb

_EVERY_S = 0.02
_CONNECT_S = 2.0


class EchoClient:
    def __init__(self, node: str, servers: list[str], authority: bytes, token: str) -> None:
        self.conduit = Conduit()
        self.lost: list[str] = []
        self._node = node
        self._servers = servers
        self._authority = authority
        self._token = token
        self._session = secrets.token_hex(16)

    async def connect(self) -> None:
        """Until the session is over: one connection after another, server by server."""
        turn = 0
        while not self.conduit.over:
            try:
                await self._once(self._servers[turn % len(self._servers)])
            except CarrierLost as lost:
                self.lost.append(f"{self._servers[turn % len(self._servers)]}: {lost}")
                turn += 1
                await asyncio.sleep(0.1)

    async def _once(self, server: str) -> None:
        credentials = grpc.ssl_channel_credentials(self._authority)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        async with aio.secure_channel(server, credentials, options=options) as channel:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await channel.channel_ready()
            except TimeoutError:
                raise CarrierLost("no connection in time") from None
            dial: Any = channel.stream_stream
            metadata = (("authorization", f"Bearer {self._token}"),)
            call = dial("/lattice.v1.LinkProbe/EchoNode")(metadata=metadata)
            carrier = GrpcCarrier(call)
            try:
                await carrier.open_with(
                    pb.StreamOpening(
                        node=self._node, session=self._session, resume=self.conduit.begun
                    )
                )
                await self.conduit.carry(carrier)
            finally:
                call.cancel()


def message(number: int) -> bytes:
    body = secrets.token_bytes(number % 2000)
    return number.to_bytes(8, "big") + hashlib.sha256(body).digest() + body


def check(payload: bytes | None, expected: int) -> None:
    assert payload is not None, "the stream ended early"
    number, digest, body = payload[:8], payload[8:40], payload[40:]
    assert int.from_bytes(number, "big") == expected, f"{number!r} came instead of {expected}"
    assert hashlib.sha256(body).digest() == digest, f"{expected} was changed on the way"


async def main(node: str, seconds: str, servers: str, authority: str) -> int:
    client = EchoClient(
        node, servers.split(","), Path(authority).read_bytes(), os.environ["LATTICE_TOKEN"]
    )
    connecting = asyncio.create_task(client.connect())
    begun = time.monotonic()
    sent = 0

    async def write() -> None:
        nonlocal sent
        while time.monotonic() - begun < float(seconds):
            await client.conduit.send(message(sent))
            sent += 1
            await asyncio.sleep(_EVERY_S)
        await client.conduit.send(b"", last=True)

    writing = asyncio.create_task(write())
    received, last, longest_s = 0, begun, 0.0
    while True:
        payload = await client.conduit.receive()
        if not received:
            # From here on a lost connection was lost by what the test does.
            print("begun", flush=True)
        now = time.monotonic()
        longest_s, last = max(longest_s, now - last), now
        if payload is None:
            break
        check(payload, received)
        received += 1
    await writing
    assert received == sent, f"{sent} went out, {received} came back"
    await connecting
    told = {"messages": sent, "longest_pause_s": round(longest_s, 2), "lost": client.lost}
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
