"""The store of `bench.logs_history`: a finished job whose log a node has brought there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from bench.stories import log_text
from lab.seaweedfs import ACCESS_KEY, BUCKET, SECRET_KEY
from lattice.adapters.objects.s3 import S3Address, S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import State
from lattice.domain.attempts import attempts_of
from lattice.domain.logs import LogKind, LogSource
from lattice.domain.objects import ObjectInfo, ObjectStore
from lattice.features.logs.node.spool import StreamHead, StreamSpool
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.intake import LogIntake
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.seal import Seals
from lattice.features.logs.service.stored import StoredStream
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler

JOB = 7
OWNER = "alice"
LASTED = timedelta(hours=1)
_READ = 64 * 1024
_NODE = "n1"
_TRIES = 120


class Counting:
    """The store, and how much was fetched from it."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.fetched_bytes = 0
        self.fetches = 0

    async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        return self._count(await self._objects.read(key, begin, end))

    async def read_end(self, key: str, most_bytes: int) -> tuple[bytes, int]:
        body, size = await self._objects.read_end(key, most_bytes)
        return self._count(body), size

    def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._objects.listing(prefix, after=after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def _count(self, body: bytes) -> bytes:
        self.fetches += 1
        self.fetched_bytes += len(body)
        return body


class Site:
    """A finished job whose log is in the store."""

    def __init__(
        self,
        place: S3Address,
        began: datetime | None = None,
        objects: ObjectStore | None = None,
    ) -> None:
        """`began` is when the job did, if another process has a site for it.

        `objects` stands for the store at that address.
        """
        clock = SystemClock()
        self.began = began or datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
        self.scheduler = scheduler = InMemoryScheduler(clock)
        scheduler.accounts = ACCOUNTS
        job = allocation(
            JOB,
            OWNER,
            "research",
            submitted=self.began,
            started=self.began,
            ended=self.began + LASTED,
            state=State.COMPLETED,
            nodes=_NODE,
        )
        scheduler.allocations.append(job)
        scheduler.read()
        self.name = AttemptName(job, attempts_of(job)[0])
        self.objects: ObjectStore = objects or S3ObjectStore(place, clock)
        unused: Any = None
        self.intake = LogIntake(
            AttemptFinder(scheduler, clock),
            unused,
            self.objects,
            unused,
            journal=unused,
            clock=clock,
            seals=Seals(self.objects, None),
        )
        self.bare = S3Store(
            place.bucket,
            prefix=place.prefix,
            config={
                "endpoint": place.endpoint,
                "region": place.region,
                "access_key_id": ACCESS_KEY,
                "secret_access_key": SECRET_KEY,
                "virtual_hosted_style_request": False,
            },
            client_options={"allow_http": True},
        )

    async def fill(self, folder: Path, size: int) -> None:
        """As a node would: read bit by bit, chunks sent as they are closed."""
        started = self.began.timestamp()
        head = StreamHead(
            node=_NODE, job_id=JOB, started=started, kind=LogKind.STDOUT, source=LogSource("batch")
        )
        spool = StreamSpool(folder, head)
        text = log_text(16 * 1024 * 1024)
        for offset in range(0, size, _READ):
            begin = offset % len(text)
            now_ms = self.ms(offset / size)
            spool.add(text[begin : begin + min(_READ, size - offset)], now_ms)
            if spool.close_if_due(now_ms):
                await self._ship(spool)
        spool.close_chunk(last=True)
        await self._ship(spool)
        spool.remove()

    async def _ship(self, spool: StreamSpool) -> None:
        for number, path in spool.closed():
            await self._store(spool.head, number, path.read_bytes())
            path.unlink()

    async def _store(self, head: StreamHead, number: int, content: bytes) -> None:
        for left in reversed(range(_TRIES)):
            try:
                await self.intake.store(
                    head.node, head.job_id, head.started, head.kind.value, str(head.source),
                    number, content,
                )  # fmt: skip
            except Unavailable:
                # A store that has just begun has no volume to write to.
                if not left:
                    raise
                await asyncio.sleep(1.0)
            else:
                return

    def ms(self, share: float) -> int:
        return int((self.began + share * LASTED).timestamp() * 1000)

    async def stored(self) -> StoredStream:
        """Everything that is known of it."""
        (stream,) = (await Archive(self.objects).streams(self.name, (LogKind.STDOUT,))).values()
        return stream


def s3_place(folder: Path, endpoint: str) -> S3Address:
    access, secret = folder / "s3.access", folder / "s3.secret"
    access.write_text(f"{ACCESS_KEY}\n")
    secret.write_text(f"{SECRET_KEY}\n")
    return S3Address(
        bucket=BUCKET,
        prefix="bench",
        endpoint=endpoint,
        region="us-east-1",
        access_key_file=access,
        secret_key_file=secret,
        allow_http=True,
    )
