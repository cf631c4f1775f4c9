"""HTTP/1.1 for slurmrestd only: GET, over persistent connections.

It supports no redirects, compression, cookies or proxies. A general client takes nine times the
processor time (0.9 ms against 0.1). That is as much as Slurm itself needs to answer "nothing
changed", every two seconds. All reads are limited in size; the caller limits the time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_HEAD_LIMIT_BYTES = 64 * 1024
_LINE_LIMIT_BYTES = 1024
_PIECE_BYTES = 1024 * 1024
_MOST_IDLE = 4
_WITHOUT_BODY = (204, 304)

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass(frozen=True, slots=True)
class RestReply:
    """Status and body, unchanged."""

    status: int
    body: bytes


class BadSlurmReply(OSError):
    """The answer is not HTTP, or was truncated."""


class TooLarge(Exception):
    """The body is larger than allowed."""


class _Stale(Exception):
    """The other side closed a reused connection before it answered anything."""


class Exchange(Protocol):
    """One request and its answer."""

    reconnects: int
    """How often the other side had closed an open connection: it may have been started again."""

    async def get(self, target: str, headers: Mapping[str, str], limit_bytes: int, /) -> RestReply:
        """Raises `OSError` or `TooLarge`."""

    async def aclose(self) -> None:
        """Close the open connections."""


class HttpExchange:
    """Uses connections made by `connect`; up to four stay open for reuse."""

    def __init__(self, connect: Connect, host: str) -> None:
        self._connect = connect
        self._host = host
        self._idle: list[_Connection] = []
        self.reconnects = 0

    async def get(self, target: str, headers: Mapping[str, str], limit_bytes: int) -> RestReply:
        """Send over an open connection, or over a new one if that was closed."""
        lines = [f"GET {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        asked = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
        while self._idle:
            try:
                return await self._ask(self._idle.pop(), asked, limit_bytes)
            except _Stale:
                self.reconnects += 1
                continue
        return await self._ask(_Connection(*await self._connect()), asked, limit_bytes)

    async def aclose(self) -> None:
        """Close the open connections."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # the loop closes an aborted socket in its next iteration

    async def _ask(self, connection: _Connection, asked: bytes, limit_bytes: int) -> RestReply:
        try:
            reply = await connection.ask(asked, limit_bytes)
        except BaseException:
            connection.close()
            raise
        if connection.reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return reply


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reusable = False
        self._reader = reader
        self._writer = writer

    def close(self) -> None:
        # No request of ours is under way on it, so no clean shutdown is needed.
        self._writer.transport.abort()

    async def ask(self, asked: bytes, limit_bytes: int) -> RestReply:
        used_before, self.reusable = self.reusable, False
        try:
            self._writer.write(asked)
            await self._writer.drain()
            status, headers = await self._head()
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            nothing_came = not getattr(error, "partial", b"")
            if used_before and nothing_came:
                raise _Stale from None
            raise BadSlurmReply("the connection was closed before an answer") from None
        body = bytearray()
        async for piece in self._body(status, headers):
            body += piece
            if len(body) > limit_bytes:
                raise TooLarge
        return RestReply(status, bytes(body))

    async def _head(self) -> tuple[int, dict[bytes, bytes]]:
        while True:
            status, headers = _parsed(await self._until(b"\r\n\r\n", _HEAD_LIMIT_BYTES))
            if status >= 200:
                break
        self.reusable = headers.get(b"connection", b"").lower() != b"close"
        return status, headers

    async def _body(self, status: int, headers: Mapping[bytes, bytes]) -> AsyncIterator[bytes]:
        if status in _WITHOUT_BODY:
            return
        length = headers.get(b"content-length")
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            async for piece in self._chunks():
                yield piece
        elif length is not None:
            async for piece in self._exactly(_size(length, 10)):
                yield piece
        else:
            self.reusable = False
            while piece := await self._reader.read(_PIECE_BYTES):
                yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._until(b"\r\n", _LINE_LIMIT_BYTES)
            size = _size(line.partition(b";")[0].strip(), 16)
            if size == 0:
                break
            async for piece in self._exactly(size):
                yield piece
            await self._until(b"\r\n", 2)
        while await self._until(b"\r\n", _LINE_LIMIT_BYTES) != b"\r\n":
            pass  # trailers

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            piece = await self._reader.read(min(size, _PIECE_BYTES))
            if not piece:
                raise BadSlurmReply("the answer was cut short")
            size -= len(piece)
            yield piece

    async def _until(self, end: bytes, limit_bytes: int) -> bytes:
        try:
            found = await self._reader.readuntil(end)
        except asyncio.LimitOverrunError:
            raise BadSlurmReply("a line of the answer is too long") from None
        if len(found) > limit_bytes:
            raise BadSlurmReply("a line of the answer is too long")
        return found


def _parsed(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head[:-4].split(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadSlurmReply("the answer is not HTTP")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadSlurmReply("the answer is not HTTP")
        headers[name.strip().lower()] = value.strip()
    if match[1] == b"0":
        headers.setdefault(b"connection", b"close")
    return int(match[2]), headers


def _size(digits: bytes, base: int) -> int:
    # int() alone would accept signs, underscores and spaces.
    if not digits.isalnum() or len(digits) > 16:
        raise BadSlurmReply("the answer does not say its length")
    try:
        return int(digits, base)
    except ValueError:
        raise BadSlurmReply("the answer does not say its length") from None
