"""Streams the state of a job to a caller for as long as it runs.

`OutputAccess` decides who may read. The stream takes a slot of the caller and keeps it over
reconnects.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from lattice.access.actor import Actor
from lattice.access.limits import CallerLimits, OpenSlot, Sessions
from lattice.access.output import CHECK_EVERY_S, OutputAccess
from lattice.base.errors import UsageError
from lattice.domain.allocation import Allocation
from lattice.domain.sharing import ReadKind
from lattice.features.watch.model import WatchQuery
from lattice.features.watch.service.cursor import WatchCursor, read_cursor
from lattice.features.watch.service.watch import StreamedRecord, WatchRun, WatchSources
from lattice.wire.watched import watched


class WatchService:
    def __init__(
        self, sources: WatchSources, access: OutputAccess, limits: CallerLimits | None = None
    ) -> None:
        self._sources = sources
        self._access = access
        self._limits = limits

    async def stream(
        self, actor: Actor, name: str, query: WatchQuery
    ) -> AsyncGenerator[StreamedRecord, None]:
        """Stream all records from now on, until the job is over. The caller must close it."""
        cursor = read_cursor(query.cursor) if query.cursor else WatchCursor(secrets.token_hex(16))
        found = await self._access.find(actor, name)
        visit = await self._access.enter(actor, found, ReadKind.OBSERVE)

        async def find() -> Allocation:
            return (await self._access.find(actor, found.allocation.ref)).allocation

        watch = WatchRun(self._sources, found.allocation, find, query, cursor)
        records: AsyncIterator[StreamedRecord] = self._counted(
            actor, cursor.session, watch.records()
        )
        if not visit.is_owners:
            records = watched(records, visit.check, CHECK_EVERY_S)
        # Errors are raised here, before anything is sent.
        first = await anext(records)
        return _with_first(first, records)

    async def _counted(
        self, actor: Actor, session: str, records: AsyncGenerator[StreamedRecord, None]
    ) -> AsyncGenerator[StreamedRecord, None]:
        if self._limits is None:
            async with aclosing(records):
                async for each in records:
                    yield each
            return
        slot = await self._limits.open(actor.sub, Sessions.STREAM_METRICS, session)
        try:
            async with aclosing(_while_placed(slot, records)) as placed:
                async for each in placed:
                    yield each
        finally:
            await slot.release()


async def _while_placed(
    slot: OpenSlot, records: AsyncGenerator[StreamedRecord, None]
) -> AsyncGenerator[StreamedRecord, None]:
    """Yield records, until the stream continues on another connection."""
    gone = asyncio.create_task(slot.wait_gone(), name="watch slot")
    try:
        while True:
            taking = asyncio.ensure_future(anext(records, None))
            try:
                await asyncio.wait({taking, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not taking.done():
                    taking.cancel()
                    await asyncio.gather(taking, return_exceptions=True)
            if taking.cancelled():
                raise UsageError(
                    "This stream goes on in another connection.",
                    hint="Begin a new one without the cursor.",
                )
            record = taking.result()
            if record is None:
                return
            yield record
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await records.aclose()


async def _with_first(
    first: StreamedRecord, rest: AsyncIterator[StreamedRecord]
) -> AsyncGenerator[StreamedRecord, None]:
    try:
        yield first
        async for each in rest:
            yield each
    finally:
        close = getattr(rest, "aclose", None)
        if close is not None:
            await close()
