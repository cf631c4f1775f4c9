"""A pipe's end at work: waiting, silence, and the next carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

import pytest

from lattice.domain.pipe import LARGEST_MESSAGE_BYTES, WINDOW_BYTES, BadFrame, FrameKind
from lattice.domain.stream import CarrierLost
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.conduit import Conduit, ConduitClosed, patient_conduit
from tests.fakes.echoing_nodes import QueueCarrier


def joined() -> tuple[QueueCarrier, QueueCarrier]:
    one: asyncio.Queue[bytes] = asyncio.Queue()
    other: asyncio.Queue[bytes] = asyncio.Queue()
    return QueueCarrier(one, other), QueueCarrier(other, one)


class Deaf:
    """A carrier from which nothing ever comes."""

    async def send(self, frame: bytes) -> None:
        """Into the void."""

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


class Ticks:
    """Stands for `asyncio.sleep`: each pause lasts until the next tick."""

    def __init__(self) -> None:
        self._tick = asyncio.Event()

    async def __call__(self, _seconds: float) -> None:
        await self._tick.wait()

    async def tick(self) -> None:
        self._tick.set()
        self._tick = asyncio.Event()
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class CountedCarrier(QueueCarrier):
    """Counts the pings that are sent over it."""

    pings = 0

    async def send(self, frame: bytes) -> None:
        self.pings += frame[0] == FrameKind.PING
        await super().send(frame)


class CountedPair:
    """Two ends of a session. Each checks the other when its own clock ticks."""

    def __init__(self) -> None:
        queues: list[asyncio.Queue[bytes]] = [asyncio.Queue(), asyncio.Queue()]
        self.ticks = (Ticks(), Ticks())
        self.carriers = (CountedCarrier(*queues), CountedCarrier(*reversed(queues)))
        self.ends = tuple(Conduit(sleep=each) for each in self.ticks)
        self._carrying: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._carrying = [
            asyncio.ensure_future(end.carry(carrier))
            for end, carrier in zip(self.ends, self.carriers, strict=True)
        ]
        await settle()
        for each in self.ticks:
            await each.tick()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    @property
    def pings(self) -> tuple[int, ...]:
        return tuple(each.pings for each in self.carriers)


async def test_on_a_quiet_connection_one_end_pings_and_the_other_answers() -> None:
    async with CountedPair() as pair:
        one, other = pair.ticks
        for number in range(1, 4):
            await one.tick()
            assert pair.pings == (number, 0)
            await other.tick()
            assert pair.pings == (number, 0), "it was pinged and has answered"


async def test_no_ping_is_sent_while_messages_flow_both_ways() -> None:
    async with CountedPair() as pair:
        for number in range(4):
            for end, far in (pair.ends, reversed(pair.ends)):
                await end.send(bytes([number]))
                assert await far.receive() == bytes([number])
            await settle()
            for each in pair.ticks:
                await each.tick()
        assert pair.pings == (0, 0)


async def test_an_end_that_only_receives_sends_pings_so_that_the_other_hears_of_it() -> None:
    async with CountedPair() as pair:
        sender, reader = pair.ends
        for number in range(10):
            await sender.send(bytes([number]))
            assert await reader.receive() == bytes([number])
            await pair.ticks[1].tick()
            await pair.ticks[0].tick()
        assert pair.pings == (0, 10)
        assert not any(task.done() for task in pair._carrying)


@pytest.mark.parametrize("frozen", [0, 1])
async def test_an_end_whose_other_end_is_frozen_pings_and_gives_up(frozen: int) -> None:
    async with CountedPair() as pair:
        living = 1 - frozen
        pair._carrying[frozen].cancel()
        await settle()
        for _ in range(2):
            await pair.ticks[living].tick()
            assert not pair._carrying[living].done()
        assert pair.pings[living] == 2
        await pair.ticks[living].tick()
        with pytest.raises(CarrierLost, match="nothing was heard for 15 s"):
            await pair._carrying[living]


class QuietStream:
    """A stream of gRPC on which nothing comes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().create_future()

    async def write(self, message: bytes) -> None:
        self.written.append(message)


@pytest.mark.parametrize("make", [Conduit, patient_conduit])
async def test_over_a_connection_that_grpc_probes_pings_are_rare(
    make: Callable[[], Conduit],
) -> None:
    """A server that follows a job of 1 000 nodes would spend most of its time on pings."""
    slept: dict[bool, list[float]] = {}
    for is_probed in (True, False):
        conduit, slept[is_probed] = make(), []

        async def sleep(seconds: float, into: list[float] = slept[is_probed]) -> None:
            into.append(seconds)
            await settle()

        conduit._sleep = sleep
        stream = QuietStream()
        with pytest.raises(CarrierLost, match="nothing was heard"):
            await conduit.carry(GrpcCarrier(stream, is_probed=is_probed))
        assert len(stream.written) == len(slept[is_probed]), "its first frame, and the pings"
    assert slept[True] == [30.0, 30.0]
    assert slept[False][0] <= 10
    assert sum(slept[False]) <= 20


async def test_messages_pass_and_both_ends_know_when_it_is_over() -> None:
    one, other = Conduit(), Conduit()
    here, there = joined()
    carrying = asyncio.gather(one.carry(here), other.carry(there))
    await one.send(b"question", last=True)
    assert await other.receive() == b"question"
    assert await other.receive() is None
    await other.send(b"", last=True)
    assert await one.receive() is None
    await asyncio.wait_for(carrying, 60)
    assert one.over
    assert other.over


async def test_silence_ends_a_carrier_and_not_the_session() -> None:
    conduit = Conduit(ping_every_s=0.1, silence_s=0.5)
    with pytest.raises(CarrierLost, match="nothing was heard"):
        await asyncio.wait_for(conduit.carry(Deaf()), 60)
    assert not conduit.over
    assert not conduit.begun
    other = Conduit()
    here, there = joined()
    carrying = [
        asyncio.ensure_future(conduit.carry(here)),
        asyncio.ensure_future(other.carry(there)),
    ]
    await conduit.send(b"still here")
    assert await other.receive() == b"still here"
    assert other.begun
    for task in carrying:
        task.cancel()


async def test_a_session_that_goes_on_is_not_kept_waiting_for_a_first_word() -> None:
    conduit, other = Conduit(first_word_s=0.5), Conduit()
    here, there = joined()
    carrying = [asyncio.ensure_future(each) for each in (conduit.carry(here), other.carry(there))]
    await conduit.send(b"heard")
    assert await other.receive() == b"heard"
    await asyncio.sleep(0.6)
    assert not carrying[0].done()
    for task in carrying:
        task.cancel()
    await asyncio.gather(*carrying, return_exceptions=True)
    with pytest.raises(CarrierLost, match="no answer within"):
        await asyncio.wait_for(conduit.carry(Deaf()), 60)


async def test_a_quiet_pipe_is_not_a_silent_one() -> None:
    one, other = (Conduit(ping_every_s=0.05, silence_s=1.0) for _ in range(2))
    here, there = joined()
    tasks = [asyncio.ensure_future(one.carry(here)), asyncio.ensure_future(other.carry(there))]
    done, _ = await asyncio.wait(tasks, timeout=1.5)
    assert not done
    for task in tasks:
        task.cancel()


async def test_who_waits_is_told_when_it_is_given_up() -> None:
    conduit = Conduit()
    reading = asyncio.ensure_future(conduit.receive())
    await asyncio.sleep(0)
    conduit.close()
    with pytest.raises(ConduitClosed):
        await reading
    with pytest.raises(ConduitClosed):
        await conduit.send(b"x")


async def test_an_end_that_breaks_the_rules_is_not_spoken_to_again() -> None:
    conduit = Conduit()
    here, there = joined()
    await there.send(b"nonsense")
    with pytest.raises(BadFrame):
        await asyncio.wait_for(conduit.carry(here), 60)
    assert conduit.over


async def test_a_message_is_written_at_once_only_if_there_is_room() -> None:
    one, other = Conduit(), Conduit()
    here, there = joined()
    message = b"x" * LARGEST_MESSAGE_BYTES
    written = 0
    while one.try_send(message):
        written += 1
    assert written == WINDOW_BYTES // LARGEST_MESSAGE_BYTES + 1
    carrying = asyncio.gather(one.carry(here), other.carry(there))
    for _ in range(written):
        assert await other.receive() == message
    async with asyncio.timeout(60):
        while not one.try_send(b"more"):
            await asyncio.sleep(0)
    assert await other.receive() == b"more"
    one.close()
    assert not one.try_send(b"after the end")
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
