"""What every store behind the port `StateStore` promises: in memory, in a file and etcd alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.base.errors import Unavailable, UsageError
from lattice.domain.state import (
    LARGEST_VALUE_BYTES,
    LONGEST_KEY,
    LONGEST_LEASE_S,
    MOST_CHANGES,
    SHORTEST_LEASE_S,
    Changed,
    Compacted,
    Delete,
    Expect,
    LeaseGone,
    NewerKeys,
    Put,
)
from tests.contract.places import EtcdPlace, FilePlace, MemoryPlace, Place

pytestmark = pytest.mark.timeout(180)

Batches = AsyncIterator[tuple[Changed, ...]]


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


async def take(batches: Batches, count: int) -> list[tuple[Changed, ...]]:
    async with asyncio.timeout(60):
        return [await anext(batches) for _ in range(count)]


async def nothing_more(place: Place, batches: Batches) -> bool:
    """A mark put now is the next thing seen."""
    revision = await place.store.put("a/mark", b"")
    (batch,) = await take(batches, 1)
    return batch[0].key == "a/mark" and batch[0].revision == revision


@pytest.mark.spec("OPS-1")
async def test_what_is_put_is_there(place: Place) -> None:
    store = place.store
    assert await store.get("a/b") is None
    first = await store.put("a/b", b"one")
    second = await store.put("a/b", b"\x00\xff")
    assert second > first
    entry = await store.get("a/b")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("a/b", b"\x00\xff", second)
    assert (entry.created, entry.lease) == (first, 0)


async def test_a_key_that_was_absent_is_created_anew(place: Place) -> None:
    await place.store.put("a", b"")
    await place.store.commit([], [Delete("a")])
    assert await place.store.get("a") is None
    again = await place.store.put("a", b"")
    entry = await place.store.get("a")
    assert entry is not None
    assert (entry.value, entry.created, entry.revision) == (b"", again, again)


async def test_a_list_is_every_key_of_the_prefix_in_order(place: Place) -> None:
    for key in ("n/b", "n/a", "n/a/x", "n", "m/a", "na", "n0"):
        newest = await place.store.put(key, key.encode())
    listing = await place.store.list("n/")
    assert [(each.key, each.value) for each in listing.entries] == [
        ("n/a", b"n/a"),
        ("n/a/x", b"n/a/x"),
        ("n/b", b"n/b"),
    ]
    assert listing.revision >= newest
    assert [each.key for each in (await place.store.list("")).entries] == sorted(
        ["n/b", "n/a", "n/a/x", "n", "m/a", "na", "n0"]
    )
    assert (await place.store.list("z")).entries == ()


@pytest.mark.spec("OPS-1")
async def test_what_is_newer_are_the_keys_that_changed_and_how_many_there_are(
    place: Place,
) -> None:
    for key in ("n/a", "n/b", "n/c", "m"):
        before = await place.store.put(key, b"1")
    await place.store.put("n/c", b"2")
    await place.store.put("m", b"2")
    await place.store.commit([], [Delete("n/a")])
    found = await place.store.newer("n/", before)
    assert [(each.key, each.value) for each in found.entries] == [("n/c", b"2")]
    assert found.count == 2
    listing = await place.store.list("n/")
    assert found.revision <= listing.revision
    assert found.entries == listing.entries[1:]
    assert (await place.store.newer("n/", listing.revision)).entries == ()
    assert await place.store.newer("z/", 0) == NewerKeys((), 0, listing.revision)


async def test_a_long_list_is_complete_and_in_order(place: Place) -> None:
    keys = [f"long/{number:05d}" for number in range(2_050)]
    for at in range(0, len(keys), 100):
        await place.store.commit([], [Put(key, b"x") for key in keys[at : at + 100]])
    assert [each.key for each in (await place.store.list("long/")).entries] == keys


async def test_a_commit_is_all_or_nothing(place: Place) -> None:
    store = place.store
    fence = await store.put("a/1", b"old")
    changes = [Put("a/1", b"new"), Put("a/2", b"new"), Delete("a/3")]
    revision = await store.commit([Expect("a/1", fence), Expect("a/2", 0)], changes)
    assert revision is not None
    assert revision > fence
    listing = await store.list("a/")
    assert [(each.key, each.value, each.revision) for each in listing.entries] == [
        ("a/1", b"new", revision),
        ("a/2", b"new", revision),
    ]
    for expect in (
        [Expect("a/1", fence)],
        [Expect("a/1", 0)],
        [Expect("a/9", revision)],
        [Expect("a/1", revision), Expect("a/2", 0)],
    ):
        assert await store.commit(expect, [Put("a/1", b"no"), Delete("a/2")]) is None
    assert await store.list("a/") == listing


async def test_deleting_what_is_absent_is_harmless(place: Place) -> None:
    before = await place.store.put("a", b"")
    assert await place.store.commit([Expect("b", 0)], [Delete("b")]) is not None
    assert (await place.store.list("")).entries[0].revision == before


@pytest.mark.spec("OPS-1")
async def test_of_many_who_race_one_wins_each_round(place: Place) -> None:
    for number in range(5):
        results = await asyncio.gather(
            *(
                place.store.commit(
                    [Expect(f"claim/{number}", 0)], [Put(f"claim/{number}", b"%d" % who)]
                )
                for who in range(20)
            )
        )
        (winner,) = [who for who, revision in enumerate(results) if revision is not None]
        entry = await place.store.get(f"claim/{number}")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"%d" % winner, results[winner])


@pytest.mark.spec("OPS-1")
async def test_a_counter_under_fences_loses_no_count(place: Place) -> None:
    async def add(times: int) -> None:
        for _ in range(times):
            while True:
                entry = await place.store.get("counter")
                count, fence = (int(entry.value), entry.revision) if entry else (0, 0)
                put = Put("counter", b"%d" % (count + 1))
                if await place.store.commit([Expect("counter", fence)], [put]) is not None:
                    break

    await asyncio.gather(*(add(10) for _ in range(8)))
    entry = await place.store.get("counter")
    assert entry is not None
    assert entry.value == b"80"


async def test_a_watch_sees_a_commit_as_one(place: Place) -> None:
    store = place.store
    await store.put("a/gone", b"")
    after = (await store.list("a/")).revision
    async with store.watch("a/", after) as batches:
        changes = [Put("a/1", b"1"), Delete("a/gone"), Put("b/1", b"not seen"), Put("a/2", b"2")]
        revision = await store.commit([], changes)
        await store.commit([], [Put("b/2", b"not seen")])
        (batch,) = await take(batches, 1)
        assert {(each.key, each.entry.value if each.entry else None) for each in batch} == {
            ("a/1", b"1"),
            ("a/2", b"2"),
            ("a/gone", None),
        }
        assert {each.revision for each in batch} == {revision}
        put = next(each for each in batch if each.key == "a/1")
        assert put.entry == await store.get("a/1")
        assert await nothing_more(place, batches)


@pytest.mark.spec("OPS-1")
async def test_a_watch_from_a_listing_misses_and_repeats_nothing(place: Place) -> None:
    store = place.store

    async def write() -> None:
        for number in range(120):
            await store.put(f"a/{number % 7}", b"%d" % number)

    writing = asyncio.create_task(write())
    seen: dict[str, bytes] = {}
    heard: list[int] = []
    try:
        while not seen:
            listing = await store.list("a/")
            seen = {each.key: each.value for each in listing.entries}
        async with store.watch("a/", listing.revision) as batches:
            while seen.get(f"a/{119 % 7}") != b"119":
                for (change,) in await take(batches, 1):
                    assert change.entry is not None
                    seen[change.key] = change.entry.value
                    heard.append(int(change.entry.value))
            await writing
            assert await nothing_more(place, batches)
    finally:
        await writing
    if heard:
        assert heard == list(range(heard[0], 120))
    truth = {each.key: each.value for each in (await store.list("a/")).entries}
    truth.pop("a/mark")
    assert seen == truth


async def test_a_watch_begins_in_the_past(place: Place) -> None:
    store = place.store
    first = await store.put("a/1", b"1")
    await store.put("a/1", b"2")
    await store.commit([], [Delete("a/1")])
    async with store.watch("a/", first) as batches:
        two = await take(batches, 2)
        assert [batch[0].entry.value if batch[0].entry else None for batch in two] == [b"2", None]
        assert await nothing_more(place, batches)


async def test_a_watch_catches_up_with_megabytes(place: Place) -> None:
    store = place.store
    start = await store.put("a/0", b"")
    for number in range(60):
        puts = [Put(f"a/{each}", b"%d" % number + b"v" * 60_000) for each in range(1, 4)]
        last = await store.commit([], puts)
    async with store.watch("a/", start) as batches:
        seen = await take(batches, 60)
        assert [len(batch) for batch in seen] == [3] * 60
        assert seen[-1][0].revision == last
        assert await nothing_more(place, batches)


async def test_watches_do_not_disturb_each_other(place: Place) -> None:
    store = place.store
    after = await store.put("a/0", b"")
    async with store.watch("a/", after) as one, store.watch("a/", after) as other:
        await store.put("a/1", b"")
        assert await take(one, 1) == await take(other, 1)
    async with store.watch("a/", after):
        pass  # left unread


async def test_keys_under_a_lease_go_when_it_is_released(place: Place) -> None:
    store = place.store
    lease = await store.lease(30)
    other = await store.lease(30)
    await store.put("a/1", b"", lease.id)
    await store.commit([], [Put("a/2", b"", lease.id), Put("a/3", b"", other.id)])
    await store.put("a/4", b"", lease.id)
    await store.put("a/4", b"")  # under it no more
    await store.put("a/5", b"", lease.id)
    await store.put("a/5", b"", other.id)
    entry = await store.get("a/1")
    assert entry is not None
    assert entry.lease == lease.id != other.id
    after = (await store.list("a/")).revision
    async with store.watch("a/", after) as batches:
        assert not lease.lost
        await lease.release()
        assert lease.lost
        await asyncio.wait_for(lease.wait_lost(), 60)
        (batch,) = await take(batches, 1)
        assert [(each.key, each.entry) for each in batch] == [("a/1", None), ("a/2", None)]
        assert await nothing_more(place, batches)
    left = [each.key for each in (await store.list("a/")).entries]
    assert left == ["a/3", "a/4", "a/5", "a/mark"]
    await lease.release()  # harmless
    await other.release()


async def test_nothing_is_put_under_a_lease_that_ended(place: Place) -> None:
    store = place.store
    lease = await store.lease(30)
    await lease.release()
    with pytest.raises(LeaseGone):
        await store.put("a/1", b"", lease.id)
    with pytest.raises(LeaseGone):
        await store.commit([], [Put("a/2", b""), Put("a/1", b"", lease.id)])
    assert await store.commit([Expect("a/1", 7)], [Put("a/1", b"", lease.id)]) is None
    assert (await store.list("a/")).entries == ()


async def test_a_lease_is_kept_alive(place: Place) -> None:
    # Not the shortest: it is lost if this process gets no processor for as long.
    lease = await place.store.lease(3 * SHORTEST_LEASE_S)
    await place.store.put("a/1", b"", lease.id)
    await place.pass_time(4 * SHORTEST_LEASE_S)
    assert not lease.lost
    assert await place.store.get("a/1") is not None
    await lease.release()


@pytest.mark.spec("LIMIT-3", "OPS-1")
async def test_what_a_dead_process_held_goes_by_itself(place: Place) -> None:
    lease = await place.store.lease(SHORTEST_LEASE_S)
    await place.store.commit([], [Put("a/1", b"", lease.id), Put("a/2", b"", lease.id)])
    stays = await place.store.put("a/3", b"stays")
    await place.lose_process()
    await place.pass_time(SHORTEST_LEASE_S)
    async with place.store.watch("a/", stays) as batches:
        (batch,) = await take(batches, 1)
        assert [(each.key, each.entry) for each in batch] == [("a/1", None), ("a/2", None)]
    assert [each.key for each in (await place.store.list("a/")).entries] == ["a/3"]


async def test_a_lease_that_can_not_be_kept_is_lost(place: Place) -> None:
    lease = await place.store.lease(SHORTEST_LEASE_S)
    await place.cut_off()
    await place.pass_time(SHORTEST_LEASE_S)
    await asyncio.wait_for(lease.wait_lost(), 60)
    assert lease.lost
    await lease.release()  # says nothing: it ends by itself


async def _use_a_store_that_can_not_be_reached(place: Place) -> float:
    """The seconds of the call that waited longest."""
    await place.store.put("a", b"")
    await place.cut_off()

    async def refused(act: asyncio.Future[object]) -> float:
        began = time.monotonic()
        with pytest.raises(Unavailable) as error:
            await act
        assert error.value.message
        assert error.value.hint
        return time.monotonic() - began

    store = place.store
    spent_s = await asyncio.gather(
        *(
            refused(asyncio.ensure_future(act))
            for act in (
                store.get("a"),
                store.list(""),
                store.put("a", b""),
                store.commit([], [Delete("a")]),
                store.lease(10),
            )
        )
    )
    return max(spent_s)


async def test_a_store_that_can_not_be_reached_says_so(place: Place) -> None:
    await _use_a_store_that_can_not_be_reached(place)


@pytest.mark.timing
async def test_a_store_that_can_not_be_reached_says_so_within_six_seconds(place: Place) -> None:
    assert await _use_a_store_that_can_not_be_reached(place) < 6


async def test_a_watch_of_what_is_forgotten_says_so(place: Place) -> None:
    store = place.store
    long_ago = await store.put("a/1", b"")
    for number in range(3):
        await store.put("a/1", b"%d" % number)
    await place.compact()
    async with store.watch("a/", long_ago) as batches:
        with pytest.raises(Compacted):
            await take(batches, 1)
    now = (await store.list("a/")).revision
    async with store.watch("a/", now) as batches:
        await store.put("a/2", b"seen")
        ((change,),) = await take(batches, 1)
        assert change.key == "a/2"


async def test_what_is_just_within_bounds_is_taken(place: Place) -> None:
    store = place.store
    key, value = "k" * LONGEST_KEY, b"v" * LARGEST_VALUE_BYTES
    after = await store.put(key, value)
    entry = await store.get(key)
    assert entry is not None
    assert entry.value == value
    changes = [Put(f"many/{number}", b"v" * 10_000) for number in range(MOST_CHANGES)]
    expect = [Expect(each.key, 0) for each in changes]
    async with store.watch("many/", after) as batches:
        assert await store.commit(expect, changes) is not None
        (batch,) = await take(batches, 1)
        assert len(batch) == MOST_CHANGES


@pytest.mark.parametrize(
    "key", ["", "k" * (LONGEST_KEY + 1), "with space", "ümlaut", "a\nb", "\x7f"]
)
async def test_what_is_no_key_is_refused(place: Place, key: str) -> None:
    store = place.store
    for act in (
        store.get(key),
        store.put(key, b""),
        store.commit([], [Delete(key)]),
        store.commit([Expect(key, 0)], [Put("a", b"")]),
        store.list(key or "\n"),
    ):
        with pytest.raises(UsageError):
            await act


async def test_what_is_too_large_is_refused(place: Place) -> None:
    store = place.store
    large = b"v" * (LARGEST_VALUE_BYTES + 1)
    many = [Put(str(number), b"") for number in range(MOST_CHANGES + 1)]
    for act in (
        store.put("a", large),
        store.commit([], [Put("a", large)]),
        store.commit([], []),
        store.commit([], many),
        store.commit([Expect(each.key, 0) for each in many], [Put("a", b"")]),
        store.commit([], [Put("a", b""), Delete("a")]),
        store.commit([], [Put(str(number), large[1:]) for number in range(17)]),
        store.lease(SHORTEST_LEASE_S - 1),
        store.lease(LONGEST_LEASE_S + 1),
    ):
        with pytest.raises(UsageError) as error:
            await act
        assert error.value.hint
