"""Frames over a stream of bytes: whole, in order, bounded, whatever the pieces they come in."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.stream import CarrierLost
from lattice.wire.conduit import Conduit
from lattice.wire.lane import LARGEST_FRAME_BYTES, TlsLane


class Wire(asyncio.Transport):
    """One direction's end: what a lane writes goes to the other lane, in pieces of a size."""

    def __init__(self, piece: int = 1 << 20) -> None:
        super().__init__()
        self.other: TlsLane | None = None
        self.piece = piece
        self.closed = self.stopped = False
        self.held = bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def write(self, data: Any) -> None:
        assert self.other is not None
        self.held += data
        if not self.stopped:
            self.deliver()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def deliver(self) -> None:
        assert self.other is not None
        while self.held:
            feed(self.other, bytes(self.held[: self.piece]))
            del self.held[: self.piece]

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """The test delivers what it likes."""

    def resume_reading(self) -> None:
        """The same."""

    def close(self) -> None:
        self.closed = True
        if self.other is not None:
            self.other.connection_lost(None)

    abort = close


def feed(lane: TlsLane, data: bytes) -> None:
    """As asyncio does: into buffers that the lane gives, as much as each can hold."""
    while data:
        room = lane.get_buffer(-1)
        assert len(room) > 0
        size = min(len(room), len(data))
        room[:size] = data[:size]
        lane.buffer_updated(size)
        data = data[size:]


def joined(piece: int = 1 << 20) -> tuple[TlsLane, TlsLane]:
    one, other, there, back = TlsLane(), TlsLane(), Wire(piece), Wire(piece)
    there.other, back.other = other, one
    one.connection_made(there)
    other.connection_made(back)
    return one, other


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack("!I", len(each)) + each for each in frames)


async def received(lane: TlsLane, count: int) -> list[bytes]:
    return [await asyncio.wait_for(lane.receive(), 10) for _ in range(count)]


@given(
    frames=st.lists(st.binary(max_size=200), max_size=20),
    sizes=st.lists(st.integers(1, 50), min_size=1),
)
def test_frames_arrive_whole_and_in_order_in_any_pieces(
    frames: list[bytes], sizes: list[int]
) -> None:
    async def run() -> list[bytes]:
        lane, data, at = TlsLane(), framed(*frames), 0
        while at < len(data):
            size = sizes[at % len(sizes)]
            feed(lane, data[at : at + size])
            at += size
        return await received(lane, len(frames))

    assert asyncio.run(run()) == frames


@pytest.mark.parametrize("size", [0, 1, 16 * 1024 - 4, 16 * 1024, 100_000, LARGEST_FRAME_BYTES])
@pytest.mark.parametrize("piece", [7919, 1 << 20])
async def test_frames_of_every_size_pass(size: int, piece: int) -> None:
    one, other = joined(piece)
    frames = [b"a", bytes(size), b"b"]
    for each in frames:
        one.write(each)
    assert await received(other, 3) == frames


async def test_parts_are_one_frame() -> None:
    one, other = joined()
    one.write(b"head", b"x" * 50_000)
    one.write(b"head", b"y")
    assert await received(other, 2) == [b"head" + b"x" * 50_000, b"heady"]


@pytest.mark.threat("node-key")
async def test_a_frame_that_is_too_large_ends_the_lane_before_it_is_stored() -> None:
    one, other = joined()
    feed(other, struct.pack("!I", LARGEST_FRAME_BYTES + 1))
    assert not other.usable
    assert len(other._buffer) <= 16 * 1024
    with pytest.raises(CarrierLost, match="too large"):
        await other.receive()
    with pytest.raises(CarrierLost):
        await one.receive()


async def test_a_quiet_lane_holds_no_buffer() -> None:
    one, other = joined()
    one.write(b"x" * 100_000)
    await received(other, 1)
    assert len(other._buffer) == 0


async def test_what_came_before_a_cut_is_received_and_then_the_cut_is_known() -> None:
    one, other = joined()
    await one.send(b"last words")
    one.close()
    assert await other.receive() == b"last words"
    with pytest.raises(CarrierLost):
        await other.receive()
    with pytest.raises(CarrierLost):
        await other.send(b"x")


async def test_a_session_over_lanes_needs_no_turn_of_the_loop() -> None:
    one, other = Conduit(), Conduit()
    here, there = joined()
    carrying = asyncio.gather(one.carry(here), other.carry(there))
    while not (one.met and other.met):
        await asyncio.sleep(0)
    await one.send(b"question")
    # The frame was handled before `send` returned.
    message = other._pipe.take()
    assert message is not None
    assert message.payload == b"question"
    await one.send(b"", last=True)
    await other.send(b"answer", last=True)
    assert await one.receive() == b"answer"
    assert await other.receive() is None
    await asyncio.wait_for(carrying, 10)
    assert one.over
    assert other.over


async def test_a_session_goes_on_over_the_next_lane() -> None:
    one, other = Conduit(), Conduit()
    for message in (b"first", b"second"):
        here, there = joined()
        carrying = [asyncio.ensure_future(each) for each in (one.carry(here), other.carry(there))]
        await one.send(message)
        assert await asyncio.wait_for(other.receive(), 10) == message
        here.close()
        there.close()
        for ended in await asyncio.gather(*carrying, return_exceptions=True):
            assert isinstance(ended, CarrierLost)


async def test_closing_a_session_ends_what_carries_it() -> None:
    one, other = Conduit(), Conduit()
    here, there = joined()
    carrying = [asyncio.ensure_future(each) for each in (one.carry(here), other.carry(there))]
    await one.send(b"x")
    assert await other.receive() == b"x"
    one.close()
    await asyncio.wait_for(carrying[0], 10)
    carrying[1].cancel()


async def test_nothing_is_written_while_the_other_side_is_slow() -> None:
    one, other = Conduit(), Conduit()
    here, there = joined()
    carrying = [asyncio.ensure_future(each) for each in (one.carry(here), other.carry(there))]
    while not (one.met and other.met):
        await asyncio.sleep(0)
    here.pause_writing()
    await one.send(b"waits")
    assert other._pipe.take() is None
    here.resume_writing()
    assert await other.receive() == b"waits"
    for task in carrying:
        task.cancel()
