"""What `Shares` and `ReadNotes` promise, on every store they stand on: in memory, a file, etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.domain.sharing import ReadKind, Share, Standing
from lattice.features.sharing.service.reads import WrittenReads
from lattice.features.sharing.service.sharing import SHARES, SharedAllocations
from tests.contract.places import EtcdPlace, FilePlace, MemoryPlace, Place
from tests.eventually import eventually_async
from tests.fakes.cluster import allocation

pytestmark = pytest.mark.timeout(180)

CLOCK = SystemClock()
JOB = allocation(7, "alice", "research")


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


@pytest.fixture
async def shares(place: Place) -> AsyncIterator[SharedAllocations]:
    view = WatchedStateView(place.store, SHARES, CLOCK)
    keeping = asyncio.create_task(view.run())
    await view.wait_first()
    yield SharedAllocations(place.store, view, CLOCK)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


def share(user: str = "bob", hours: float = 1.0) -> Share:
    now = CLOCK.now().replace(microsecond=0)
    return Share(
        allocation=JOB.ref, owner="alice", user=user, since=now, until=now + timedelta(hours=hours)
    )


async def seen(place: Place, shares: SharedAllocations, user: str, *, there: bool) -> bool:
    """Once the watch has told it."""
    await eventually_async(lambda: bool(shares.with_user(user)) is there)
    return True


@pytest.mark.spec("AUTH-7")
async def test_a_share_begins_is_replaced_and_ends(place: Place, shares: SharedAllocations) -> None:
    first, other = share(), share("carol")
    await shares.begin(first)
    await shares.begin(other)
    assert await shares.newest_with("bob") == (first,)
    assert await seen(place, shares, "bob", there=True)
    assert await seen(place, shares, "carol", there=True)
    assert set(shares.of_owner("alice")) == {first, other}
    longer = replace(first, until=first.until + timedelta(days=1))
    await shares.begin(longer)
    assert await shares.newest_with("bob") == (longer,)
    await shares.end(longer)
    assert await shares.newest_with("bob") == ()
    assert await seen(place, shares, "bob", there=False)
    assert shares.with_user("carol") == (other,)


@pytest.mark.spec("AUTH-7")
async def test_one_users_shares_are_not_anothers(shares: SharedAllocations) -> None:
    """Whose name begins with the other's, or holds what separates keys."""
    for user in ("bob", "bobby", "bo", "b/o"):
        await shares.begin(share(user))
    for user in ("bob", "bobby", "bo", "b/o"):
        assert [each.user for each in await shares.newest_with(user)] == [user]
    assert await shares.newest_with("b") == ()


@pytest.mark.spec("AUTH-7")
async def test_time_ends_a_share_whose_key_is_there(shares: SharedAllocations) -> None:
    await shares.begin(share(hours=-1))
    assert await shares.newest_with("bob") == ()
    assert shares.with_user("bob") == ()


@pytest.mark.spec("AUTH-7")
async def test_every_read_of_many_servers_is_counted(place: Place) -> None:
    servers = [WrittenReads(place.store, CLOCK) for _ in range(6)]
    await asyncio.gather(
        *(each.note("bob", Standing.SHARED, JOB, ReadKind.READ) for each in servers),
        *(each.note("carol", Standing.COORDINATOR, JOB, ReadKind.FOLLOW) for each in servers[:2]),
    )
    told = await servers[0].of([JOB])
    assert {(each.reader, each.times) for each in told} == {("bob", 6), ("carol", 2)}


@pytest.mark.spec("AUTH-7")
async def test_what_cannot_be_written_is_an_error(place: Place) -> None:
    notes = WrittenReads(place.store, CLOCK)
    await notes.note("bob", Standing.SHARED, JOB, ReadKind.READ)
    await place.cut_off()
    with pytest.raises(Unavailable, match="can't be written down"):
        await notes.note("bob", Standing.SHARED, JOB, ReadKind.FOLLOW)
