"""Paces calls without a token, by address: nothing else is known about an anonymous caller.

Public routes are answered from prepared bytes. Still, each response costs time of the event loop,
and a client may repeat it without end. Beyond the rate a response is held for a second, so a
connection that repeats calls costs one response per second. Other routes have verified callers.

Health is held and never refused: a load balancer that shares its address with a flood must not take
the server for dead. Buckets are this replica's own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lattice.access.limits import Buckets
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, RateLimited

PER_MINUTE = 1200
"""For one address: 20 a second, and a minute's worth at once. A sign-in needs one."""
HOLD_S = 1.0
_KIND = "public"
_NEVER_REFUSED = frozenset({"/healthz", "/readyz"})
_MOST_ADDRESSES = 20_000


class PublicPace:
    """Around the application: delays and refuses calls that one address makes too often."""

    def __init__(
        self,
        app: ASGIApp,
        paths: Collection[str],
        clock: Clock,
        refused: Callable[[str], None],
        answer: Callable[[Request, LatticeError], Response],
        *,
        per_minute: int = PER_MINUTE,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`paths` are the public ones; `refused` is called with the kind of every refusal.

        `answer` makes the response to an error.
        """
        self._app = app
        self._paths = frozenset(paths)
        self._clock = clock
        self._refused = refused
        self._answer = answer
        self._per_minute = per_minute
        self._sleep = sleep
        self._buckets = Buckets(_MOST_ADDRESSES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = None
        if scope["type"] == "http" and scope["path"] in self._paths:
            error = await self._refusal(scope)
        if error is None:
            await self._app(scope, receive, send)
        else:
            # Errors that are raised here, outside the application, would pass as defects.
            await self._answer(Request(scope), error)(scope, receive, send)

    async def _refusal(self, scope: Scope) -> RateLimited | None:
        client = scope.get("client")
        address = client[0] if client else ""
        verdict = self._buckets.take(address, _KIND, self._per_minute, self._clock.monotonic())
        if verdict.granted:
            return None
        await self._sleep(HOLD_S)
        if scope["path"] in _NEVER_REFUSED:
            return None
        self._refused(_KIND)
        after_s = max(1, math.ceil(verdict.wait_s))
        return RateLimited(
            f"Too many calls without a token from {address}: {self._per_minute} a minute.",
            hint=f"Try again in {after_s} s.",
            retry_after_s=after_s,
        )
