"""A pipe's end at work: waiting, silence, and the next carrier."""

from __future__ import annotations

import asyncio

import pytest

from lattice.domain.pipe import BadFrame
from lattice.domain.stream import CarrierLost
from lattice.wire.conduit import Conduit, ConduitClosed
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
