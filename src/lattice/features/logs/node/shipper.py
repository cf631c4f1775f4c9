"""Sends closed chunks to the server: one at a time, streams in turn.

A chunk leaves the spool only after the server reported that it is stored. A chunk without an answer
is sent again under the same number; the server recognises its content.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable

from lattice.base.errors import LatticeError, PermissionRefused, UsageError
from lattice.base.failpoints import failpoint
from lattice.domain.logchunk import BadChunk, ChunkIndex
from lattice.features.logs.node.intake import Intake
from lattice.features.logs.node.spool import StoredChunk, StreamHead, StreamSpool
from lattice.wire.v1 import logs_pb2 as pb

_log = logging.getLogger(__name__)

PART_BYTES = 128 * 1024
"""Well below the limit of one message from an agent."""
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class Shipping:
    """Runs in the event loop; other threads call `nudge` through the loop."""

    def __init__(
        self,
        intake: Intake,
        spools: Callable[[], Iterable[StreamSpool]],
        on_stored: Callable[[StreamSpool], None] = lambda _: None,
    ) -> None:
        self._intake = intake
        self._spools = spools
        self._on_stored = on_stored
        self._due = asyncio.Event()
        self._refused: dict[StreamHead, str] = {}
        self.trouble = ""
        """Why chunks wait; empty if they don't."""

    def nudge(self) -> None:
        """A chunk waits to be sent."""
        self._due.set()

    async def run(self) -> None:
        """Run until cancelled."""
        failures = 0
        while True:
            self._due.clear()
            try:
                sent = await self._send_each_oldest()
            except LatticeError as error:
                if error.message != self.trouble:
                    _log.warning("chunks wait: %s", error.message)
                self.trouble = error.message
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
                continue
            if self.trouble:
                _log.info("chunks are stored again")
            self.trouble, failures = "", 0
            if not sent:
                await self._due.wait()

    async def _send_each_oldest(self) -> int:
        """Send one chunk of every stream that has one, so that a flood does not delay others."""
        sent = 0
        for spool in tuple(self._spools()):
            waiting = await asyncio.to_thread(spool.closed)
            if not waiting:
                continue
            number, path = waiting[0]
            try:
                content, index = await asyncio.to_thread(spool.read_closed, number, path)
            except BadChunk:
                _log.exception("a chunk of job %d is torn", spool.head.job_id)
                continue
            try:
                taken = await self._intake.store(_parts(spool.head, number, content))
            except (PermissionRefused, UsageError) as error:
                # It stays here and is sent again later; it must not block others.
                self._log_refused(spool, error)
                continue
            failpoint("ship.acknowledged")
            await asyncio.to_thread(spool.took, number, _stored(taken, index))
            self._on_stored(spool)
            sent += 1
        return sent

    def _log_refused(self, spool: StreamSpool, error: LatticeError) -> None:
        if self._refused.get(spool.head) != error.message:
            _log.error("output of job %d is not stored: %s", spool.head.job_id, error.message)
        self._refused[spool.head] = error.message


def _stored(number: int, index: ChunkIndex) -> StoredChunk:
    chunks = None if index.before is None else index.before + 1
    return StoredChunk(number, index.end.offset, index.end.line, index.last, chunks)


async def _parts(head: StreamHead, number: int, content: bytes) -> AsyncIterator[pb.ChunkPart]:
    yield pb.ChunkPart(
        head=pb.ChunkHead(
            job_id=head.job_id,
            started=head.started,
            kind=head.kind.value,
            source=str(head.source),
            number=number,
            size_bytes=len(content),
        )
    )
    for begin in range(0, len(content), PART_BYTES):
        yield pb.ChunkPart(body=content[begin : begin + PART_BYTES])
        failpoint("ship.part.sent")
