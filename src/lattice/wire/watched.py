"""A stream that is checked again while it runs, and ends when it may not continue.

The clock triggers the checks, not the records, so an idle stream ends as soon as a busy one. At
most one record is buffered, so the source is held back as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def watched(
    records: AsyncIterator[T], check: Callable[[], Awaitable[None]], every_s: float
) -> AsyncIterator[T]:
    """The records, until they end or `check` raises, which is raised here."""
    waiting: asyncio.Queue[tuple[T] | None] = asyncio.Queue(1)
    pumping = asyncio.create_task(_pump(records, waiting), name="watched")
    loop = asyncio.get_running_loop()
    due = loop.time() + every_s
    try:
        while True:
            taking = asyncio.ensure_future(waiting.get())
            try:
                while True:
                    done, _ = await asyncio.wait({taking}, timeout=max(due - loop.time(), 0.0))
                    if loop.time() >= due:
                        await check()
                        due = loop.time() + every_s
                    if done:
                        break
            finally:
                taking.cancel()
            item = taking.result()
            if item is None:
                # Raises what ended the records, if it was an error.
                await pumping
                return
            yield item[0]
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)


async def _pump(records: AsyncIterator[T], waiting: asyncio.Queue[tuple[T] | None]) -> None:
    try:
        async for each in records:
            await waiting.put((each,))
    except asyncio.CancelledError:
        raise
    except BaseException:
        await waiting.put(None)
        raise
    else:
        await waiting.put(None)
    finally:
        close = getattr(records, "aclose", None)
        if close is not None:
            await close()
