"""A lease ends by its holder's own clock, before etcd could have ended it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lattice.adapters.etcd.lease import EtcdLease
from lattice.base.errors import Unavailable
from tests.fakes.manual_clock import ManualClock


class Members:
    """Answers what it is told; the time it takes is the clock's."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ttl_s: int | None = 9
        self.takes_s = 0.0

    async def ask(self, _call: Callable[..., Awaitable[Any]], **_options: Any) -> Any:
        self.clock.advance(self.takes_s)
        if self.ttl_s is None:
            raise Unavailable("away")
        return self.ttl_s


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def lease_of(members: Members) -> EtcdLease:
    return EtcdLease(members, members.clock, 7, 9, members.clock.monotonic())  # type: ignore[arg-type]


async def test_it_is_lost_when_nothing_confirmed_it_for_its_time(clock: ManualClock) -> None:
    lease = lease_of(Members(clock))
    clock.advance(8.9)
    assert not lease.lost
    clock.advance(0.1)
    assert lease.lost
    await asyncio.wait_for(lease.wait_lost(), 60)


async def test_time_counts_from_when_the_question_was_sent(clock: ManualClock) -> None:
    members = Members(clock)
    lease = lease_of(members)
    clock.advance(3)
    members.takes_s = 4
    assert await lease._confirm()
    clock.advance(4.9)  # 8.9 s after it was sent
    assert not lease.lost
    clock.advance(0.1)
    assert lease.lost


async def test_a_store_that_is_away_confirms_nothing(clock: ManualClock) -> None:
    members = Members(clock)
    lease = lease_of(members)
    members.ttl_s = None
    clock.advance(5)
    assert not await lease._confirm()
    clock.advance(4)
    assert lease.lost
    members.ttl_s = 9
    assert lease.lost  # never again not


async def test_a_lease_etcd_has_ended_is_lost_at_once(clock: ManualClock) -> None:
    members = Members(clock)
    lease = lease_of(members)
    members.ttl_s = 0
    assert not await lease._confirm()
    assert lease.lost


async def test_whoever_waits_is_told_when_nobody_keeps_it(clock: ManualClock) -> None:
    lease = lease_of(Members(clock))
    keeping = asyncio.create_task(lease.keep())
    await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.wait_for(lease.wait_lost(), 60)
    assert lease.lost


async def test_a_release_that_does_not_arrive_is_no_error(clock: ManualClock) -> None:
    members = Members(clock)
    lease = lease_of(members)
    members.ttl_s = None
    await lease.release()
    assert lease.lost
