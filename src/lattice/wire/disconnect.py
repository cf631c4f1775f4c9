"""Work for an HTTP response that ends when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

T = TypeVar("T")

CLIENT_LEFT = 499
"""A status for the log alone; the client is gone."""


class ClientLeft(Exception):
    """The client closed the connection before the response."""


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The work's result, or `ClientLeft` after the work was cancelled.

    For requests without a body: other input is ignored.
    """
    working = asyncio.ensure_future(work)
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
