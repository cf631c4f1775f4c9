"""Closed chunks on their way to the server: one at a time, streams in turn, until it has them.

A chunk leaves the spool only after the server said that it is stored. What was sent and not
answered is sent again under the same number; the server knows its own content.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable

from lattice.base.errors import LatticeError, PermissionRefused, UsageError
from lattice.base.failpoints import failpoint
from lattice.domain.logchunk import BadChunk, ChunkIndex, read_index
from lattice.features.logs.node.intake import Intake
from lattice.features.logs.node.spool import Stored, StreamHead, StreamSpool
from lattice.wire.v1 import logs_pb2 as pb

_log = logging.getLogger(__name__)

PART_BYTES = 128 * 1024
"""Well below what one message on an agent's wire may have."""
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class Shipping:
    """Runs in the loop; `nudge` from any thread through the loop."""

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
        """Something waits to be sent."""
        self._due.set()

    async def run(self) -> None:
        """Until cancelled."""
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
        """One chunk of every stream that has one: a flood does not hold up the others."""
        sent = 0
        for spool in tuple(self._spools()):
            waiting = await asyncio.to_thread(spool.closed)
            if not waiting:
                continue
            number, path = waiting[0]
            content = await asyncio.to_thread(path.read_bytes)
            try:
                index = read_index(content, len(content))
            except BadChunk:
                _log.exception("a chunk of job %d is torn", spool.head.job_id)
                continue
            try:
                taken = await self._intake.store(_parts(spool.head, number, content))
            except (PermissionRefused, UsageError) as error:
                # It stays here and is offered again; it must not keep others from being stored.
                self._tell_refused(spool, error)
                continue
            failpoint("ship.acknowledged")
            await asyncio.to_thread(spool.took, number, _stored(taken, index))
            self._on_stored(spool)
            sent += 1
        return sent

    def _tell_refused(self, spool: StreamSpool, error: LatticeError) -> None:
        if self._refused.get(spool.head) != error.message:
            _log.error("output of job %d is not stored: %s", spool.head.job_id, error.message)
        self._refused[spool.head] = error.message


def _stored(number: int, index: ChunkIndex) -> Stored:
    chunks = None if index.before is None else index.before + 1
    return Stored(number, index.end.offset, index.end.line, index.last, chunks)


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
