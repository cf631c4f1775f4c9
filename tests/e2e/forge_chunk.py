"""`python -m tests.e2e.forge_chunk STATE_DIR NODE JOB STARTED TEXT`: a thief's chunk, sent.

With the node's real certificate, for the batch output of a job, from its first byte on. Prints what
the server answers. With `bomb` as its text the chunk has a frame that swells to 1 GiB.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from grpc import aio

from lattice.agent.certificates import LocalCertificates
from lattice.agent.identity_issuer import dial_terms
from lattice.agent.identity_store import IdentityStore
from lattice.base.zstd import zstd
from lattice.domain.logchunk import (
    FRAME_BYTES,
    ChunkIndex,
    Frame,
    compress,
    index_frame,
    pack_marks,
)
from lattice.domain.logs import LogKind
from lattice.wire.v1 import logs_pb2 as pb
from lattice.wire.v1.logs_pb2_grpc import LogIntakeStub


def forged(node: str, job: int, started: float, text: bytes) -> bytes:
    """A chunk that is sound in itself, and says that its stream ends with it."""
    return _chunk(node, job, started, compress(text), text)


def bomb(node: str, job: int, started: float) -> bytes:
    """A chunk that says its frame holds as much as one may, and holds far more."""
    packer = zstd.ZstdCompressor()
    packed = b"".join(packer.compress(bytes(2**20)) for _ in range(1024)) + packer.flush()
    return _chunk(node, job, started, packed, bytes(FRAME_BYTES - 1) + b"\n")


def _chunk(node: str, job: int, started: float, packed: bytes, text: bytes) -> bytes:
    marks = pack_marks([(len(text), int(started * 1000) + 1000)])
    index = ChunkIndex(
        node=node,
        job_id=job,
        started=started,
        kind=LogKind.STDOUT,
        source="batch",
        offset=0,
        line=0,
        frames=(Frame(len(packed), len(text), text.count(b"\n"), marks),),
        last=True,
        sha256=hashlib.sha256(packed).hexdigest(),
    )
    return packed + index_frame(index)


async def send(folder: Path, node: str, job: int, started: float, text: bytes) -> str:
    held = IdentityStore(folder, node, LocalCertificates()).load()
    assert held is not None, "it has no certificate"
    swells = text == b"bomb\n"
    content = bomb(node, job, started) if swells else forged(node, job, started, text)

    async def parts() -> AsyncIterator[pb.ChunkPart]:
        head = pb.ChunkHead(
            job_id=job,
            started=started,
            kind="stdout",
            source="batch",
            number=1,
            size_bytes=len(content),
        )
        yield pb.ChunkPart(head=head)
        yield pb.ChunkPart(body=content)

    credentials, options = dial_terms(held)
    async with aio.secure_channel(held.replicas[0], credentials, options) as channel:
        stub: Any = LogIntakeStub(channel)
        try:
            answer = await stub.StoreChunk(parts(), timeout=30)
        except aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return f"stored as {answer.number}"


if __name__ == "__main__":
    _, _folder, _node, _job, _started, _text = sys.argv
    answer = send(Path(_folder), _node, int(_job), float(_started), _text.encode() + b"\n")
    print(asyncio.run(answer))
