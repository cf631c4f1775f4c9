"""A proxy before an S3 that does what networks and overloaded stores do, request by request.

It listens on loopback and passes whole HTTP/1.1 requests on. Faults are named beforehand, in the
order in which requests shall meet them; then everything passes again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType
from typing import Self

from tests.fakes.s3_server import Answer, Request, next_request


class Fault(Enum):
    """What meets a request."""

    NONE = auto()
    HANG = auto()
    """It is never answered, and the connection stays open."""
    UNAVAILABLE = auto()
    """503, as an overloaded gateway says it."""
    REFUSED = auto()
    """403."""
    CONFLICT = auto()
    """409, as AWS says it to two who write at once."""
    CUT_BEFORE = auto()
    """The connection breaks and the store has seen nothing."""
    CUT_AFTER = auto()
    """The store has done it, and the connection breaks before its answer."""
    HANG_AFTER = auto()
    """The store has done it, and the answer never comes."""
    DENIED_AFTER = auto()
    """The store has done it, and a gateway before it says 503."""
    TORN = auto()
    """The answer breaks off in the middle."""


_STATUS = {
    Fault.UNAVAILABLE: Answer("503 Service Unavailable", b"<Error><Code>SlowDown</Code></Error>"),
    Fault.DENIED_AFTER: Answer("503 Service Unavailable", b"<Error><Code>SlowDown</Code></Error>"),
    Fault.REFUSED: Answer("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>"),
    Fault.CONFLICT: Answer(
        "409 Conflict", b"<Error><Code>ConditionalRequestConflict</Code></Error>"
    ),
}
_UNSEEN = {Fault.HANG, Fault.UNAVAILABLE, Fault.REFUSED, Fault.CONFLICT, Fault.CUT_BEFORE}


class FaultyProxy:
    """`meet` says what comes; `draw` or `always` what meets all others; `seen` counts methods."""

    def __init__(
        self, upstream: str, *, port: int = 0, draw: Callable[[], Fault] | None = None
    ) -> None:
        self._port = port
        self._draw = draw or (lambda: self.always)
        host, _, port = upstream.partition(":")
        self._upstream = (host, int(port))
        self._coming: list[Fault] = []
        self.always = Fault.NONE
        self.seen: Counter[str] = Counter()
        self.given_up = asyncio.Event()
        """A client has left a request that hung."""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    def meet(self, *faults: Fault) -> None:
        self._coming += faults

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for each in self._open:
            each.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while request := await next_request(reader):
                    self.seen[request.method] += 1
                    fault = self._coming.pop(0) if self._coming else self._draw()
                    if not await self._pass(request, fault, reader, writer):
                        break
        finally:
            writer.transport.abort()

    async def _pass(
        self,
        request: Request,
        fault: Fault,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """False once the connection is to break."""
        answer = b"" if fault in _UNSEEN else await self._forward(request)
        if fault in {Fault.HANG, Fault.HANG_AFTER}:
            await reader.read(1)
            self.given_up.set()
            return False
        if fault in {Fault.CUT_BEFORE, Fault.CUT_AFTER}:
            return False
        if fault is Fault.TORN:
            writer.write(answer[: answer.index(b"\r\n\r\n") + 4 + _middle(answer)])
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            return False
        writer.write(_STATUS[fault].raw() if fault in _STATUS else answer)
        await writer.drain()
        return True

    async def _forward(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(request.raw)
            await writer.drain()
            return await _answer_of(reader, head_only=request.method == "HEAD")
        finally:
            writer.transport.abort()


def _middle(answer: bytes) -> int:
    return (len(answer) - answer.index(b"\r\n\r\n") - 4) // 2


async def _answer_of(reader: asyncio.StreamReader, *, head_only: bool) -> bytes:
    """Byte for byte, whether it has a length or comes in pieces."""
    head = await reader.readuntil(b"\r\n\r\n")
    lowered = head.lower()
    if head_only or lowered.split()[1] in {b"204", b"304"}:
        return head
    if b"transfer-encoding: chunked" in lowered:
        pieces = [head]
        while True:
            size = await reader.readuntil(b"\r\n")
            piece = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            pieces += [size, piece]
            if piece == b"\r\n":
                return b"".join(pieces)
    length = next(
        (int(line[15:]) for line in lowered.split(b"\r\n") if line.startswith(b"content-length:")),
        0,
    )
    return head + await reader.readexactly(length)
