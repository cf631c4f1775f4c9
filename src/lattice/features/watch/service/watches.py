"""Streams the state of a job to a caller for as long as it runs.

`OutputAccess` decides who may look. The stream takes a slot of the caller and keeps it over
reconnects.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from lattice.access.actor import Actor
from lattice.access.limits import CallerLimits, OpenSlot, Sessions
from lattice.access.output import LOOK_EVERY_S, OutputAccess
from lattice.base.errors import UsageError
from lattice.domain.allocation import Allocation
from lattice.domain.sharing import ReadKind
from lattice.features.watch.model import WatchQuery
from lattice.features.watch.service.cursor import WatchCursor, read_cursor
from lattice.features.watch.service.watch import Told, WatchRun, WatchSources
from lattice.wire.watched import watched


class WatchService:
    """Serves callers."""

    def __init__(
        self, sources: WatchSources, door: OutputAccess, limits: CallerLimits | None = None
    ) -> None:
        self._sources = sources
        self._door = door
        self._limits = limits

    async def stream(
        self, actor: Actor, name: str, query: WatchQuery
    ) -> AsyncGenerator[Told, None]:
        """Stream all records from now on, until the job is over. The caller must close it."""
        cursor = read_cursor(query.cursor) if query.cursor else WatchCursor(secrets.token_hex(16))
        found = await self._door.find(actor, name)
        visit = await self._door.enter(actor, found, ReadKind.FOLLOW)

        async def find() -> Allocation:
            return (await self._door.find(actor, found.allocation.ref)).allocation

        watch = WatchRun(self._sources, found.allocation, find, query, cursor)
        told: AsyncIterator[Told] = self._counted(actor, cursor.session, watch.told())
        if not visit.is_owners:
            told = watched(told, visit.check, LOOK_EVERY_S)
        # Errors are raised here, before anything is sent.
        first = await anext(told)
        return _with_first(first, told)

    async def _counted(
        self, actor: Actor, session: str, told: AsyncGenerator[Told, None]
    ) -> AsyncGenerator[Told, None]:
        if self._limits is None:
            async with aclosing(told):
                async for each in told:
                    yield each
            return
        slot = await self._limits.open(actor.sub, Sessions.STREAM_METRICS, session)
        try:
            async with aclosing(_while_placed(slot, told)) as placed:
                async for each in placed:
                    yield each
        finally:
            await slot.release()


async def _while_placed(
    slot: OpenSlot, told: AsyncGenerator[Told, None]
) -> AsyncGenerator[Told, None]:
    """Yield records, until the stream continues on another connection."""
    gone = asyncio.create_task(slot.wait_gone(), name="watch slot")
    try:
        while True:
            taking = asyncio.ensure_future(anext(told, None))
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
        await told.aclose()


async def _with_first(first: Told, rest: AsyncIterator[Told]) -> AsyncGenerator[Told, None]:
    try:
        yield first
        async for each in rest:
            yield each
    finally:
        close = getattr(rest, "aclose", None)
        if close is not None:
            await close()
