"""Slots on every store there is: exact under a storm of two replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.access.limits import DEFAULTS, LimitTable, Sessions
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import SystemClock
from lattice.base.errors import RateLimited
from lattice.domain.state import StateStore
from lattice.server.cluster.slots import PREFIX, Slot, Slots
from tests.contract.places import EtcdPlace, FilePlace, MemoryPlace, Place

pytestmark = pytest.mark.timeout(180)

KIND = Sessions.ATTACH


@pytest.fixture(params=["memory", "file", pytest.param("etcd", marks=pytest.mark.lab)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "memory":
        yield MemoryPlace()
        return
    place = (
        FilePlace(tmp_path / "state")
        if request.param == "file"
        else EtcdPlace(request.getfixturevalue("etcd_lab"), request.getfixturevalue("etcd_doorway"))
    )
    await place.open()
    try:
        yield place
    finally:
        await place.close()


async def replica(store: StateStore, name: str, limit: int = 5) -> Slots:
    lease = await store.lease(10)
    clock = SystemClock()
    view = WatchedStateView(store, PREFIX, clock)
    table = LimitTable(dict(DEFAULTS) | {KIND: limit})
    return Slots(store, view, table, clock, replica=name, lease=lambda: lease.id)


async def tried(slots: Slots, session: str) -> Slot | None:
    try:
        return await slots.take("u", KIND, session)
    except RateLimited:
        return None


@pytest.mark.spec("LIMIT-2")
async def test_a_storm_on_two_replicas_opens_exactly_as_many_as_allowed(place: Place) -> None:
    both = [await replica(place.store, name) for name in ("server-1", "server-2")]
    for _ in range(3):
        tries = [tried(both[number % 2], f"s{number}") for number in range(40)]
        held = [slot for slot in await asyncio.gather(*tries) if slot is not None]
        assert len(held) == len((await place.store.list(PREFIX)).entries) == 5
        await asyncio.gather(*(slot.release() for slot in held))
        assert not (await place.store.list(PREFIX)).entries


@pytest.mark.spec("LIMIT-2")
async def test_sessions_that_resume_in_a_storm_keep_their_count(place: Place) -> None:
    both = [await replica(place.store, name) for name in ("server-1", "server-2")]
    for number in range(5):
        assert await tried(both[0], f"s{number}")
    tries = [tried(both[number % 2], f"s{number % 5}") for number in range(20)]
    tries += [tried(both[number % 2], f"new{number}") for number in range(10)]
    again = await asyncio.gather(*tries)
    assert all(again[:20])
    assert not any(again[20:])
    assert len((await place.store.list(PREFIX)).entries) == 5


@pytest.mark.spec("LIMIT-3")
@pytest.mark.long
async def test_a_dead_process_frees_what_it_held(place: Place) -> None:
    if isinstance(place, FilePlace):
        pytest.skip("one server alone: its slots end with it, when it starts again")
    first = await replica(place.store, "server-1")
    for number in range(5):
        assert await tried(first, f"s{number}")
    await place.lose_process()
    second = await replica(place.store, "server-2")
    assert await tried(second, "mine") is None
    await place.pass_time(13)
    assert await tried(second, "mine") is not None
