"""A stream that is looked at again: whole while it may go on, over when it may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from lattice.base.errors import NotFound
from lattice.wire.watched import watched


class Source:
    def __init__(self, count: int, *, then: str = "end") -> None:
        self.count = count
        self.then = then
        self.made = 0
        self.closed = False

    async def __call__(self) -> AsyncIterator[int]:
        try:
            for number in range(self.count):
                self.made += 1
                yield number
            if self.then == "fail":
                raise RuntimeError("broken")
            if self.then == "quiet":
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def collected(records: AsyncIterator[int], into: list[int]) -> None:
    async for each in records:
        into.append(each)  # noqa: PERF401 - what came before an error counts


async def fine() -> None:
    return


async def over() -> None:
    raise NotFound("not there")


async def test_everything_comes_in_order() -> None:
    source = Source(100)
    assert [each async for each in watched(source(), fine, 0.0)] == list(range(100))
    assert source.closed


@pytest.mark.spec("AUTH-7", "AUTH-8")
async def test_a_busy_one_ends_when_it_may_not_go_on() -> None:
    source = Source(1_000_000)
    seen: list[int] = []
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks > 5:
            raise NotFound("not there")

    with pytest.raises(NotFound):
        await collected(watched(source(), look, 0.0), seen)
    assert seen == list(range(len(seen)))
    assert len(seen) <= 5, "nothing is handed out after the look that said no"
    assert source.closed


@pytest.mark.spec("AUTH-7", "AUTH-8")
async def test_a_quiet_one_ends_as_well() -> None:
    source = Source(0, then="quiet")
    with pytest.raises(NotFound):
        await collected(watched(source(), over, 0.01), [])
    assert source.closed


async def test_what_broke_it_is_told() -> None:
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="broken"):
        await collected(watched(Source(3, then="fail")(), fine, 60.0), seen)
    assert seen == [0, 1, 2]


async def test_whoever_leaves_closes_it_and_makers_are_held_back() -> None:
    source = Source(1000)
    async with aclosing(watched(source(), fine, 60.0)) as records:  # type: ignore[type-var]
        async for _ in records:
            break
    assert source.closed
    assert source.made <= 4
