"""Server-sent events: records as they come, a sign of life when none do, and an error in words.

Bounded: a reader that is slow is waited for, and with it whoever makes the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from lattice.base.errors import InternalError, LatticeError
from lattice.wire.status import http_error

LIFE_EVERY_S = 5.0
RECHECK_EVERY_S = 60.0
_MOST_WAITING = 64
_ENCODER = msgspec.json.Encoder()


class EventStream(StreamingResponse):
    """Pairs of a record (its `type` names the event) and a cursor, until they end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        records: AsyncIterator[tuple[Any, str]],
        request_id: str,
        recheck: Callable[[], Awaitable[object]],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        """`recheck` raises when the caller may not go on."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_events(records, request_id, recheck, on_defect), headers=headers)


async def _events(
    records: AsyncIterator[tuple[Any, str]],
    request_id: str,
    recheck: Callable[[], Awaitable[object]],
    on_defect: Callable[[BaseException], None],
) -> AsyncIterator[bytes]:
    waiting: asyncio.Queue[tuple[Any, str] | None] = asyncio.Queue(_MOST_WAITING)
    pumping = asyncio.create_task(_pump(records, waiting), name="events")
    loop = asyncio.get_running_loop()
    checked = loop.time()
    try:
        yield b": lattice\n\n"
        while True:
            try:
                async with asyncio.timeout(LIFE_EVERY_S):
                    item = await waiting.get()
            except TimeoutError:
                yield b": alive\n\n"
                item = ()  # type: ignore[assignment]
            if item is None:
                # Raises what ended the records, if it was an error.
                pumping.result()
                yield b"event: end\ndata: {}\n\n"
                return
            if item:
                yield _event(*item)
            if loop.time() - checked >= RECHECK_EVERY_S:
                checked = loop.time()
                await recheck()
    except LatticeError as error:
        yield _error(error, request_id)
    except Exception as error:  # noqa: BLE001 - the status line is sent, so it is said in the stream
        on_defect(error)
        yield _error(InternalError("Lattice has failed here."), request_id)
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)


async def _pump(
    records: AsyncIterator[tuple[Any, str]],
    waiting: asyncio.Queue[tuple[Any, str] | None],
) -> None:
    try:
        async for each in records:
            await waiting.put(each)
    finally:
        # Behind the last record, and there whatever ended them.
        asyncio.get_running_loop().call_soon(_close, waiting)


def _close(waiting: asyncio.Queue[tuple[Any, str] | None]) -> None:
    if waiting.full():
        asyncio.get_running_loop().call_later(0.05, _close, waiting)
    else:
        waiting.put_nowait(None)


def _event(record: Any, cursor: str) -> bytes:
    head = f"event: {record.type}\n" + (f"id: {cursor}\n" if cursor else "")
    return head.encode() + b"data: " + _ENCODER.encode(record) + b"\n\n"


def _error(error: LatticeError, request_id: str) -> bytes:
    _, body, _ = http_error(error, request_id)
    return b"event: error\ndata: " + _ENCODER.encode(body) + b"\n\n"
