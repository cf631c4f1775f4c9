"""The agent's `/metrics`, off by default: on a unix socket or a loopback address.

An agent opens no port to the network, so the configuration refuses any other address. Every account
of the node can reach a loopback address, and so the metrics of all jobs there. The rights of its
folder restrict access to a unix socket.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def metrics_address(listen: str) -> MetricsAddress | None:
    """None for an empty string. Raises `ValueError` for an address that other hosts can reach."""
    if not listen:
        return None
    path = listen.removeprefix("unix:")
    if path.startswith("/"):
        return MetricsAddress(path=Path(path))
    host, _, port = listen.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    if not ipaddress.ip_address(host).is_loopback:
        raise ValueError("not a loopback address")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("no port")
    return MetricsAddress(host=host, port=int(port))


class MetricsEndpoint:
    """Answers GET and HEAD of one page, with limits on time and connections."""

    def __init__(self, address: MetricsAddress, page: Callable[[], str]) -> None:
        self._address = address
        self._page = page
        self._answering: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

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
                await asyncio.gather(*self._answering, *self._leaving, return_exceptions=True)
                if self._address.path is not None:
                    self._address.path.unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        path = self._address.path
        if path is None:
            return await asyncio.start_server(
                self._take, self._address.host, self._address.port, limit=_LARGEST_HEAD_BYTES
            )
        if path.is_socket():
            path.unlink()  # left by an earlier agent
        server = await asyncio.start_unix_server(self._take, path, limit=_LARGEST_HEAD_BYTES)
        path.chmod(_SOCKET_MODE)
        return server

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._answering) >= _MOST_AT_ONCE:
            self._keep(self._leaving, _closed(writer))
        else:
            self._keep(self._answering, self._serve(reader, writer))

    @staticmethod
    def _keep(tasks: set[asyncio.Task[None]], step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(step, name="metrics door question")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await self._answer(reader))
            async with asyncio.timeout(_ANSWER_S):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, too slow, or sent too much
        finally:
            await _closed(writer)

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
        body = self._page().encode()
        return _response("200 OK", body, shown=method == b"GET")


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _response(status: str, body: bytes, *, shown: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if shown else b"")
