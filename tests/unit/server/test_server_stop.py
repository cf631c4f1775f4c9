"""What a stop does to streams that are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lattice.base.errors import Unavailable
from lattice.server.listeners.server_stop import ServerStop
from lattice.wire.events import EventStream
from lattice.wire.interceptor import never_changes


async def test_a_change_is_passed_on() -> None:
    inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    change = ServerStop(lambda: inner).next_change()
    inner.set_result(None)
    assert await change is None


async def test_a_stream_that_ends_leaves_nothing_behind() -> None:
    inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stop = ServerStop(lambda: inner)
    change = stop.next_change()
    change.cancel()
    await asyncio.sleep(0)
    assert inner.cancelled()
    assert not stop._waiting


async def test_streams_that_begin_too_late_end_too() -> None:
    stop = ServerStop(never_changes)
    stop.begin()
    with pytest.raises(Unavailable, match="stopping"):
        await stop.next_change()


@pytest.mark.spec("OPS-1")
async def test_an_open_stream_ends_at_once_with_the_reason() -> None:
    stop, sent = ServerStop(never_changes), []

    async def records() -> AsyncIterator[tuple[Any, str]]:
        await asyncio.Event().wait()
        yield None, ""

    async def send(message: Any) -> None:
        sent.append(message)

    async def recheck() -> None:
        raise AssertionError("nobody is checked again by a stop")

    def defect(error: BaseException) -> None:
        raise error

    stream = EventStream(records(), "id", recheck, defect, stop.next_change)
    serving = asyncio.create_task(stream.stream_response(send))
    while not sent:
        await asyncio.sleep(0)
    stop.begin()
    await serving
    last = b"".join(each.get("body", b"") for each in sent)
    assert b"event: error" in last
    assert b"This server is stopping." in last
    assert sent[-1]["more_body"] is False
