"""Work for an answer ends with its caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from lattice.wire.rest import ClientLeft, while_connected


class Caller:
    """Whose messages are put in by the test."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.request = Request({"type": "http", "headers": []}, self.messages.get)

    def says(self, kind: str) -> None:
        self.messages.put_nowait({"type": kind})


async def test_whoever_stays_has_the_answer() -> None:
    caller = Caller()
    caller.says("http.request")

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await while_connected(caller.request, work()) == 7
    assert len(asyncio.all_tasks()) == 1, "nobody listens any more"


async def test_an_error_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await while_connected(Caller().request, work())


@pytest.mark.spec("LIMIT-4")
async def test_work_is_cancelled_when_its_caller_leaves() -> None:
    caller = Caller()
    ended: list[str] = []

    async def work() -> None:
        try:
            caller.says("http.request")
            caller.says("http.disconnect")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(ClientLeft):
        await while_connected(caller.request, work())
    assert ended == ["cancelled"]
    assert len(asyncio.all_tasks()) == 1


async def test_whoever_cancels_the_answer_cancels_the_work() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    answer = asyncio.create_task(while_connected(Caller().request, work()))
    await begun.wait()
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    assert ended.is_set()
