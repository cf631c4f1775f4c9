"""Streams of records over HTTP: as they come, a keepalive when none do, and errors.

They are server-sent events, unless a writer of another form is given. Each record is sent at once
and nothing is queued here. So a slow reader slows the source of the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lattice.base.errors import InternalError, LatticeError, Unavailable
from lattice.base.operation import RecordWriter
from lattice.wire.interceptor import RECHECK_EVERY_S, NextChange, never_changes
from lattice.wire.status import http_error

_TEXT = {"type": "string"}
DESCRIPTION: dict[str, Any] = {
    "description": "Events; `data` is a record as JSON, `id` the cursor after it.",
    "content": {
        "text/event-stream": {
            "schema": {
                "type": "object",
                "properties": {"event": _TEXT, "id": _TEXT, "data": _TEXT},
                "required": ["event", "data"],
            }
        }
    },
}
KEEPALIVE_EVERY_S = 5.0
_LAST_WORD_S = 5.0
_MOST_AT_ONCE_BYTES = 64 * 1024
"""Sent at once: OpenSSL keeps a buffer of the largest size for as long as the connection lasts."""
_ENCODER = msgspec.json.Encoder()


class EventWriter:
    """Server-sent events; the `type` of a record names its event."""

    begin, alive, end = b": lattice\n\n", b": alive\n\n", b"event: end\ndata: {}\n\n"

    def record(self, record: Any, cursor: str) -> bytes:
        """An event; its id is the cursor."""
        head = f"event: {record.type}\n" + (f"id: {cursor}\n" if cursor else "")
        return head.encode() + b"data: " + _ENCODER.encode(record) + b"\n\n"

    def error(self, document: bytes) -> bytes:
        """The last event."""
        return b"event: error\ndata: " + document + b"\n\n"


class EventStream(StreamingResponse):
    """Pairs of a record and a cursor, until they end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        records: AsyncIterator[tuple[Any, str]],
        request_id: str,
        recheck: Callable[[], Awaitable[object]],
        on_defect: Callable[[BaseException], None],
        next_change: NextChange = never_changes,
        writer: RecordWriter | None = None,
        media_type: str | None = None,
    ) -> None:
        """`recheck` raises when the caller may not continue; `next_change` triggers it early."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": "accept"}
        super().__init__(_nothing(), headers=headers, media_type=media_type)
        self._writer = writer or EventWriter()
        self._records = records
        self._request_id = request_id
        self._recheck = recheck
        self._on_defect = on_defect
        self._next_change = next_change

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send everything, until the reader leaves.

        Starlette's own method takes a group of tasks for each reader.
        """
        left = asyncio.create_task(self.listen_for_disconnect(receive), name="reader")
        try:
            await self.stream_response(send, left)
        finally:
            left.cancel()

    async def stream_response(self, send: Send, left: asyncio.Task[None] | None = None) -> None:
        """Send everything from the head to the last event, unless the reader has `left`."""
        start = {"type": "http.response.start", "status": self.status_code}
        await send(start | {"headers": self.raw_headers})
        outlet = _Outlet(send)
        await outlet.send(self._writer.begin)
        sender = asyncio.create_task(self._send_records(outlet), name="events")
        try:
            await self._attend(sender, outlet, left)
            if left is not None and left.done():
                return
            # Raises what ended the records, if it was an error.
            sender.result()
            last = self._writer.end
        except LatticeError as error:
            last = self._error(error)
        except Exception as error:  # noqa: BLE001 - the status line is sent already
            self._on_defect(error)
            last = self._error(InternalError("Lattice has failed here."))
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        # A reader that does not read gets no last event: the connection is closed instead.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                await outlet.send(last)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _error(self, error: LatticeError) -> bytes:
        _, body, _ = http_error(error, self._request_id)
        return self._writer.error(_ENCODER.encode(body))

    async def _send_records(self, outlet: _Outlet) -> None:
        async for record, cursor in self._records:
            await outlet.send(self._writer.record(record, cursor))

    async def _attend(
        self, sender: asyncio.Task[None], outlet: _Outlet, left: asyncio.Task[None] | None
    ) -> None:
        """Send keepalive comments until the records end, and recheck the caller."""
        loop = asyncio.get_running_loop()
        ends = {sender} if left is None else {sender, left}
        checked = loop.time()
        change = self._next_change()
        try:
            while not sender.done():
                outlet.silent = True
                await asyncio.wait(
                    {*ends, change},
                    timeout=KEEPALIVE_EVERY_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if any(each.done() for each in ends):
                    return
                if change.done():
                    change.result()
                if change.done() or loop.time() - checked >= RECHECK_EVERY_S:
                    checked = loop.time()
                    change = self._next_change() if change.done() else change
                    # While the caller can't be checked, what is open stays open.
                    with suppress(Unavailable):
                        await self._recheck()
                if outlet.silent and not outlet.sending:
                    await outlet.send(self._writer.alive)
        finally:
            change.cancel()


class _Outlet:
    """Sends to the reader, one text after the other."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self.silent = False

    @property
    def sending(self) -> bool:
        """True while the reader has not taken the previous text."""
        return self._turn.locked()

    async def send(self, text: bytes) -> None:
        self.silent = False
        async with self._turn:
            for at in range(0, len(text), _MOST_AT_ONCE_BYTES):
                part = text[at : at + _MOST_AT_ONCE_BYTES]
                await self._send({"type": "http.response.body", "body": part, "more_body": True})


async def _nothing() -> AsyncIterator[bytes]:
    """The content for Starlette; `stream_response` sends the real one."""
    pieces: tuple[bytes, ...] = ()
    for piece in pieces:
        yield piece
