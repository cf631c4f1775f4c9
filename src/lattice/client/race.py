"""The asynchronous client's choice of a replica: the first connected one gets the request.

`lattice.base.fast_start.connector` does the same for the blocking client. Each request begins in
its own task, one after another. Before the first byte is sent, `trace` lets one of them through and
stops the others. So a race never sends a request twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import httpx2

from lattice.base.fast_start.connector import STAGGER_S

T = TypeVar("T")

Trace: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""httpx2 calls it at each step of a request (its extension `trace`)."""
_CONNECTED = "connection.connect_tcp.complete"
_SENDS = ("http11.send_request_headers.started", "http2.send_request_headers.started")
NOTHING_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class Unanswered(Exception):
    """No response came; with the address and the reason."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(why)
        self.url = url
        self.why = why


class NoConnection(Unanswered):
    """No replica could be connected, so nothing was sent. `reasons` are by address."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(" or ".join(reasons), "; ".join(dict.fromkeys(reasons.values())))
        self.reasons = reasons


class BrokenAnswer(Unanswered):
    """The request was sent to `url`."""


class _Overtaken(Exception):
    """Another replica was connected first."""


class _Attempt:
    """One of the requests; `race` holds the one that was let through."""

    def __init__(self, url: str, race: list[_Attempt]) -> None:
        self.url = url
        self._race = race
        self._stream: Any = None

    async def trace(self, step: str, info: Mapping[str, Any]) -> None:
        """Called by httpx2. Raises `_Overtaken`."""
        if step == _CONNECTED:
            self._stream = info["return_value"]
        # The request for a proxy tunnel comes first and is no part of the request.
        if step not in _SENDS or info["request"].method == b"CONNECT":
            return
        if not self._race:
            self._race.append(self)
        elif self._race[0] is not self:
            raise _Overtaken

    async def hang_up(self) -> None:
        """Close what a cancelled handshake leaves open."""
        if self._stream is not None:
            await self._stream.aclose()


async def first_connected(
    urls: Sequence[str],
    send: Callable[[str, Trace], Awaitable[T]],
    *,
    stagger_s: float | None = STAGGER_S,
) -> tuple[str, T]:
    """The replica, and what `send` returned for it.

    Without `stagger_s` the next one begins only after a failure. Raises `NoConnection`, or
    `BrokenAnswer` once something was sent.
    """
    race: list[_Attempt] = []
    waiting = list(urls)
    running: dict[asyncio.Future[T], _Attempt] = {}
    reasons: dict[str, str] = {}
    try:
        while True:
            if waiting and not race:
                attempt = _Attempt(waiting.pop(0), race)
                running[asyncio.ensure_future(send(attempt.url, attempt.trace))] = attempt
            timeout_s = stagger_s if waiting and not race else None
            done, _ = await asyncio.wait(
                running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                url = running.pop(task).url
                error = task.exception()
                if error is None:
                    return url, task.result()
                _judge(url, error, reasons)
            if not running and (race or not waiting):
                raise NoConnection(reasons)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for attempt in running.values():
            await attempt.hang_up()


def _judge(url: str, error: BaseException, reasons: dict[str, str]) -> None:
    """Record why one could not be connected; raise other errors."""
    if isinstance(error, NOTHING_SENT):
        reasons[url] = why(error)
    elif isinstance(error, (httpx2.HTTPError, OSError)):
        raise BrokenAnswer(url, why(error)) from error
    elif not isinstance(error, _Overtaken):
        raise error


def why(failure: BaseException) -> str:
    """The reason of a failure, for people."""
    return str(failure) or type(failure).__name__
