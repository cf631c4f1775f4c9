"""An open link: its pings, and what ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from grpc import aio

from lattice.features.link.node import keeper
from lattice.features.link.node.dialler import LinkChannel
from lattice.features.link.node.keeper import LineLost, LinkLine
from lattice.wire.v1 import link_pb2 as pb
from tests.eventually import eventually_async
from tests.fakes.manual_clock import ManualClock


class Call:
    """The call of a link: grpc ends it if a write or a read is cancelled."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.written = 0
        self.was_cancelled = False

    async def write(self, _message: pb.LinkUp) -> None:
        try:
            await self.room.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        self.written += 1

    async def read(self) -> pb.LinkDown:
        return await asyncio.get_running_loop().create_future()


class Channel:
    def stream_stream(self, *_: Any, **__: Any) -> None:
        """The test sets the call."""


def opened(call: Call, clock: ManualClock) -> LinkLine:
    line = LinkLine(LinkChannel("r1:1", cast("aio.Channel", Channel())), clock)
    line._call = call
    line.welcome = pb.Welcome(ping_every_ms=30_000, silence_ms=65_000)
    return line


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_PING_CHECK_S", 0.001)


@pytest.mark.spec("AUTH-9")
async def test_a_ping_that_is_written_late_does_not_end_the_link() -> None:
    """On a machine without processor time a write takes seconds. grpc ends a call at its cancel."""
    call, clock = Call(), ManualClock()
    line = opened(call, clock)
    checks = 0

    def health() -> Any:
        nonlocal checks
        checks += 1
        return line._pinged_health

    line._health = health
    running = asyncio.create_task(line.run(lambda _: None))
    try:
        await asyncio.sleep(0.05)  # several checks
        assert not call.was_cancelled
        call.room.set()
        await eventually_async(lambda: call.written == 1)
        await eventually_async(lambda: checks > 5)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("AUTH-9")
async def test_a_write_that_never_ends_does_not_hide_the_silence() -> None:
    call, clock = Call(), ManualClock()
    running = asyncio.create_task(opened(call, clock).run(lambda _: None))
    await asyncio.sleep(0.01)
    clock.advance(66)
    with pytest.raises(LineLost, match="nothing was heard for 66 s"):
        await running


@pytest.mark.spec("AUTH-9")
async def test_a_call_that_was_cancelled_is_a_lost_link_and_ends_nothing_else() -> None:
    """Else the loop that dials again would end with it, and without a word."""

    class Cancelled(Call):
        async def read(self) -> pb.LinkDown:
            raise asyncio.CancelledError

    with pytest.raises(LineLost):
        await opened(Cancelled(), ManualClock()).run(lambda _: None)
