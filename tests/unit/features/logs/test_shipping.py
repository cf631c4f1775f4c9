"""Chunks on their way to the server: every one, and none in the way of another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.base.errors import PermissionRefused, Unavailable
from lattice.features.logs.node.shipper import Shipping
from lattice.features.logs.node.spool import StreamSpool
from lattice.wire.carriers import STREAM_OPTIONS
from lattice.wire.v1 import logs_pb2 as pb
from tests.eventually import eventually_async
from tests.unit.features.logs.test_spool import HEAD

LARGEST_MESSAGE = dict(STREAM_OPTIONS)["grpc.max_send_message_length"]


class Server:
    """Takes chunks; refuses those of one job, or all."""

    def __init__(self) -> None:
        self.refused_job = 0
        self.away = False
        self.stored: list[tuple[int, bytes]] = []
        self.refusals = 0

    async def store(self, parts: AsyncIterator[pb.ChunkPart]) -> int:
        head, body = pb.ChunkHead(), b""
        async for part in parts:
            assert part.ByteSize() <= LARGEST_MESSAGE
            if part.HasField("head"):
                head = part.head
            body += part.body
        if self.away:
            self.refusals += 1
            raise Unavailable("away")
        if head.job_id == self.refused_job:
            self.refusals += 1
            raise PermissionRefused("not there")
        assert len(body) == head.size_bytes
        self.stored.append((head.job_id, body))
        return head.number


def spool_of(folder: Path, job_id: int, text: bytes) -> StreamSpool:
    made = StreamSpool(folder / str(job_id), replace(HEAD, job_id=job_id))
    made.add(text, 1_700_000_000_000)
    made.close_chunk(last=True)
    made.close()
    return made


async def shipped(wanted: Callable[[], object], server: Server, *spools: StreamSpool) -> None:
    """Ship until it is as wanted."""
    shipping = Shipping(server, lambda: spools)  # type: ignore[arg-type]
    running = asyncio.create_task(shipping.run())
    await eventually_async(wanted)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("LOG-3")
async def test_a_chunk_larger_than_a_message(tmp_path: Path) -> None:
    server = Server()
    noise = random.Random(1).randbytes(3_000_000)
    spool = spool_of(tmp_path, 7, noise)
    (_, waiting), *_ = spool.closed()
    content = waiting.read_bytes()
    assert len(content) > LARGEST_MESSAGE
    await shipped(lambda: not spool.closed(), server, spool)
    assert server.stored == [(7, content)]
    assert spool.closed() == []


@pytest.mark.spec("LOG-3")
async def test_what_is_refused_stays_and_holds_up_nobody(tmp_path: Path) -> None:
    server = Server()
    server.refused_job = 7
    refused, taken = spool_of(tmp_path, 7, b"a\n"), spool_of(tmp_path, 8, b"b\n")
    await shipped(lambda: not taken.closed() and server.refusals, server, refused, taken)
    assert [job for job, _ in server.stored] == [8]
    assert len(refused.closed()) == 1
    server.refused_job = 0
    await shipped(lambda: not refused.closed(), server, refused)
    assert refused.closed() == []


@pytest.mark.spec("LOG-3")
async def test_what_a_server_that_is_away_did_not_take_is_sent_later(tmp_path: Path) -> None:
    server = Server()
    server.away = True
    spool = spool_of(tmp_path, 7, b"a\n")
    await shipped(lambda: server.refusals, server, spool)
    assert len(spool.closed()) == 1
    server.away = False
    await shipped(lambda: not spool.closed(), server, spool)
    assert (len(server.stored), spool.closed()) == (1, [])
