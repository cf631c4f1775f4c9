"""`/metrics` of a process, for a scraper: one page over HTTP/1.1, on a socket or an address.

Nobody signs in here. The rights of its folder restrict access to a unix socket. Every account of
the machine can reach a loopback address, and so the page.

At most 8 connections are open. A further one replaces the oldest of the account, or
address, that has most. So nobody keeps others out with slow connections of their own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lattice.base.socket_peer import socket_peer

_log = logging.getLogger(__name__)

_LARGEST_HEAD_BYTES = 8 * 1024
_HEAD_S = 5.0
_ANSWER_S = 10.0
_MOST_AT_ONCE = 8
_RETRY_S = 30.0
_SOCKET_MODE = 0o660
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """A path, or a host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """True if no other host can reach it."""
        return self.path is not None or ipaddress.ip_address(self.host).is_loopback


def metrics_address(listen: str) -> MetricsAddress | None:
    """Parse `unix:/path`, `/path` or `ip:port`. None for an empty string. Raises `ValueError`."""
    if not listen:
        return None
    path = listen.removeprefix("unix:")
    if path.startswith("/"):
        return MetricsAddress(path=Path(path))
    host, _, port = listen.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    ipaddress.ip_address(host)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("no port")
    return MetricsAddress(host=host, port=int(port))


def local_metrics_address(listen: str) -> MetricsAddress | None:
    """As `metrics_address`, but raises `ValueError` for an address that other hosts can reach."""
    address = metrics_address(listen)
    if address is not None and not address.is_local:
        raise ValueError("not a loopback address")
    return address


class MetricsEndpoint:
    """Answers GET and HEAD of one page, with limits on time and connections."""

    def __init__(
        self,
        address: MetricsAddress,
        page: Callable[[], str],
        *,
        reuse_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A page is sent again for `reuse_s`, so that many callers cost no more than one."""
        self._address = address
        self._page = page
        self._reuse_s = reuse_s
        self._monotonic = monotonic
        self._made = b""
        self._made_s = float("-inf")
        self._answering: dict[asyncio.Task[None], str] = {}
        """Open connections with their peers, the oldest first."""

    async def run(self) -> None:
        """Run until cancelled; if the address is in use, try again."""
        while True:
            try:
                server = await self._listen()
            except OSError as error:
                _log.warning("no /metrics: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                await server.serve_forever()
            finally:
                server.close()
                for task in self._answering:
                    task.cancel()
                await asyncio.gather(*self._answering, return_exceptions=True)
                if self._address.path is not None:
                    self._address.path.unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        path = self._address.path
        if path is None:
            return await asyncio.start_server(
                self._take, self._address.host, self._address.port, limit=_LARGEST_HEAD_BYTES
            )
        if path.is_socket():
            path.unlink()  # left by an earlier process
        server = await asyncio.start_unix_server(self._take, path, limit=_LARGEST_HEAD_BYTES)
        path.chmod(_SOCKET_MODE)
        return server

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="metrics request")
        self._answering[task] = socket_peer(writer.get_extra_info("socket"))
        task.add_done_callback(self._answering.pop)
        # A cancelled task is here until the next turn of the loop.
        staying = {each: peer for each, peer in self._answering.items() if not each.cancelling()}
        if len(staying) > _MOST_AT_ONCE:
            most = Counter(staying.values()).most_common(1)[0][0]
            next(each for each, peer in staying.items() if peer == most).cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await self._answer(reader))
            async with asyncio.timeout(_ANSWER_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, too slow, or sent too much
        finally:
            # Not `close`, which waits for a client that does not read.
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response("400 Bad Request", b"")
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", b"")
        if target.partition(b"?")[0] != b"/metrics":
            return _response("404 Not Found", b"")
        return _response("200 OK", self._content(), shown=method == b"GET")

    def _content(self) -> bytes:
        now_s = self._monotonic()
        if now_s - self._made_s >= self._reuse_s:
            self._made, self._made_s = self._page().encode(), now_s
        return self._made


def _response(status: str, body: bytes, *, shown: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if shown else b"")
