"""Work for an answer over HTTP that ends when its caller leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")

CLIENT_LEFT = 499
"""A status for the log alone; nobody is there to read it."""


class ClientLeft(Exception):
    """The caller closed the connection before there was an answer."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result, or `ClientLeft` after the work was cancelled.

    For requests without a body: whatever else comes in is passed over.
    """
    working = asyncio.create_task(work, name="answer")
    leaving = asyncio.create_task(_left(request), name="disconnect")
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
