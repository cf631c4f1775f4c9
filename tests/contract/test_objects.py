"""What every object store behind the port promises: fake, folder, a spoken S3, SeaweedFS."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.objects import (
    BadKeyPart,
    NoObject,
    ObjectInfo,
    ObjectStore,
    key_of,
    unescaped,
)
from tests.contract.stores import KINDS, Place, place_of

pytestmark = pytest.mark.timeout(180)

HOSTILE_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../../b",
    "a/./b",
    ".unfinished/x",
    "a b",
    "a\nb",
    "a\0b",
    "ü",
    "%2e%2e%2f",
    "a%2fb",
    "a~",
    "a.",
    "k" * 201,
    "/".join(["k" * 100] * 10),
]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with place_of(request.param, request, tmp_path) as place:
        yield place


async def keys(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    return [each.key async for each in store.listing(prefix, after=after)]


@pytest.mark.spec("LOG-1")
async def test_what_is_put_is_there(place: Place) -> None:
    body = bytes(range(256))
    assert await place.store.put_new("a/b.log", body)
    assert await place.store.read("a/b.log") == body
    await place.store.put("a/b.log", b"other")
    assert await place.store.read("a/b.log") == b"other"
    await place.store.put("c", b"")
    assert await place.store.read("c") == b""


@pytest.mark.spec("LOG-1")
async def test_a_key_is_taken_once(place: Place) -> None:
    assert await place.store.put_new("a/b", b"first")
    assert not await place.store.put_new("a/b", b"later")
    assert not await place.store.put_new("a/b", b"first")
    assert await place.store.read("a/b") == b"first"
    await place.store.delete("a/b")
    assert await place.store.put_new("a/b", b"again")


@pytest.mark.spec("LOG-1")
async def test_of_many_who_race_one_wins(place: Place) -> None:
    # SeaweedFS lets those who meet at a key wait a second each: not too many.
    for number in range(5):
        key = f"race/{number}"
        bodies = [b"%d" % who * (1 + 1000 * who) for who in range(6)]
        won = await asyncio.gather(*(place.store.put_new(key, body) for body in bodies))
        (winner,) = [body for body, mine in zip(bodies, won, strict=True) if mine]
        assert await place.store.read(key) == winner


@pytest.mark.story
@pytest.mark.spec("LOG-6")
async def test_ranges_are_read_as_asked(place: Place) -> None:
    body = random.Random(7).randbytes(10_000)
    await place.store.put("r", body)
    for begin, end in ((0, 1), (0, 10_000), (9_999, 10_000), (500, 700), (9_000, 20_000), (0, 0)):
        assert await place.store.read("r", begin, end) == body[begin:end]
    assert await place.store.read("r", 4_000) == body[4_000:]
    assert await place.store.read("r", 700, 500) == b""
    for begin, end in ((10_000, None), (10_000, 10_001), (50_000, 60_000), (50_000, None)):
        assert await place.store.read("r", begin, end) == b""


@pytest.mark.spec("LOG-6")
async def test_the_end_comes_with_the_whole_size(place: Place) -> None:
    body = random.Random(8).randbytes(5_000)
    await place.store.put("r", body)
    for most in (1, 8, 4_999, 5_000, 5_001, 1_000_000):
        assert await place.store.read_end("r", most) == (body[-most:], 5_000)
    assert await place.store.read_end("r", 0) == (b"", 5_000)


async def test_an_empty_object_is_one(place: Place) -> None:
    assert await place.store.put_new("e", b"")
    assert not await place.store.put_new("e", b"x")
    assert await place.store.read("e") == b""
    assert await place.store.read("e", 0, 10) == b""
    assert await place.store.read("e", 5) == b""
    assert await place.store.read_end("e", 10) == (b"", 0)
    (only,) = [each async for each in place.store.listing("e")]
    assert only.size_bytes == 0


async def test_what_is_not_there_is_told_apart(place: Place) -> None:
    await place.store.put("a/b", b"x")
    for key in ("a/c", "b", "a/b/c"):
        for act in (
            place.store.read(key),
            place.store.read(key, 3),
            place.store.read(key, 3, 9),
            place.store.read(key, 3, 3),
            place.store.read_end(key, 10),
            place.store.read_end(key, 0),
        ):
            with pytest.raises(NoObject):
                await act
        await place.store.delete(key)
    assert await place.store.folders("nothing/") == ()
    assert await keys(place.store, "nothing/") == []


async def test_a_listing_is_in_the_order_of_keys(place: Place) -> None:
    """A walk through folders would tell `a/x` before `a-b`."""
    every = ["a%20c/y", "a-b", "a-b2/z", "a.b", "a/x", "a/y-z/1", "a/y/1", "a/y0", "a0", "aa", "b"]
    assert every == sorted(every)
    for key in random.Random(3).sample(every, len(every)):
        await place.store.put(key, key.encode())
    found = [each async for each in place.store.listing("")]
    assert [each.key for each in found] == every
    assert [each.size_bytes for each in found] == [len(key) for key in every]
    for prefix in ("a", "a/", "a/y", "a/y/", "a-", "a%", "b", "c", "a-b", "a-b2/"):
        assert await keys(place.store, prefix) == [key for key in every if key.startswith(prefix)]
        for after in (*every, "a/y-", "0", "zz"):
            expected = [key for key in every if key.startswith(prefix) and key > after]
            assert await keys(place.store, prefix, after) == expected


async def test_an_object_tells_when_it_was_written(place: Place) -> None:
    # Stores tell whole seconds, and their clock may differ a little.
    tolerance = timedelta(minutes=1)
    before = datetime.now(UTC) - tolerance
    await place.store.put("a/b", b"xyz")
    after = datetime.now(UTC) + tolerance
    (info,) = [each async for each in place.store.listing("a/")]
    assert isinstance(info, ObjectInfo)
    assert (info.key, info.size_bytes) == ("a/b", 3)
    assert info.modified.tzinfo is not None
    assert sorted([before, info.modified, after]) == [before, info.modified, after]


@pytest.mark.spec("LOG-3")
async def test_a_listing_gives_the_order_of_storing_whatever_the_names(place: Place) -> None:
    """Where chunks overlap, what was stored first is read. Stores may tell whole seconds."""
    names = ("c", "a", "b")
    for name in names:
        assert await place.store.put_new(f"order/{name}", name.encode())
    found = {each.key: each.modified async for each in place.store.listing("order/")}
    moments = [found[f"order/{name}"] for name in names]
    assert moments == sorted(moments)


async def test_long_listings_are_whole(place: Place) -> None:
    names = [f"many/chunk_{number:06}.log.zst" for number in range(1_050)]
    limit = asyncio.Semaphore(16)

    async def put(key: str) -> None:
        async with limit:
            assert await place.store.put_new(key, b"x")

    await asyncio.gather(*map(put, names))
    assert await keys(place.store, "many/") == names
    assert await keys(place.store, "many/", names[1_001]) == names[1_002:]
    assert await keys(place.store, "many/chunk_00104") == names[1_040:]


async def test_folders_are_one_level(place: Place) -> None:
    for key in ("a/b/c/d", "a/b/e", "a/b-c/f", "a/g", "h/i", "j"):
        await place.store.put(key, b"")
    assert await place.store.folders("") == ("a/", "h/")
    assert await place.store.folders("a/") == ("a/b-c/", "a/b/")
    assert await place.store.folders("a/b/") == ("a/b/c/",)
    assert await place.store.folders("a/b/c/") == ()


async def test_a_folder_without_objects_hinders_nobody(place: Place) -> None:
    """A store may keep it; then it is empty."""
    for key in ("a/b/c/d", "a/b/e"):
        await place.store.put(key, b"")
    await place.store.delete("a/b/c/d")
    await place.store.delete("a/b/c/d")
    for left in await place.store.folders("a/b/"):
        assert await keys(place.store, left) == []
    assert await keys(place.store, "a/") == ["a/b/e"]
    await place.store.delete("a/b/e")
    assert await keys(place.store, "") == []
    assert await place.store.put_new("a/b/c/d", b"again")
    assert await place.store.put_new("a/b/f", b"new")
    assert await keys(place.store, "a/") == ["a/b/c/d", "a/b/f"]


async def test_writers_and_deleters_do_not_disturb_each_other(place: Place) -> None:
    async def come_and_go(number: int) -> None:
        for _ in range(10):
            assert await place.store.put_new(f"a/b/{number}", b"x")
            await place.store.delete(f"a/b/{number}")

    await asyncio.gather(*map(come_and_go, range(6)))
    assert await keys(place.store, "a/") == []


@pytest.mark.spec("LOG-1")
async def test_a_whole_chunk_goes_through(place: Place) -> None:
    body = random.Random(9).randbytes(9 * 1024 * 1024)
    assert await place.store.put_new("big", body)
    assert await place.store.read("big") == body
    assert await place.store.read("big", 8_000_000, 8_000_010) == body[8_000_000:8_000_010]
    end, size = await place.store.read_end("big", 70_000)
    assert (end, size) == (body[-70_000:], len(body))


@pytest.mark.spec("LOG-1")
async def test_hostile_names_are_only_names(place: Place) -> None:
    names = [
        "../..",
        "a/b",
        "%2e%2e%2f",
        "//",
        "a\0b",
        "аdmin",
        "end.",
        "two\nlines",
        " ",
        "ü",
        "+",
    ]
    written = {key_of("t", name, "x"): name for name in names}
    for key in written:
        assert await place.store.put_new(key, key.encode())
    assert await keys(place.store, "t/") == sorted(written)
    found = await place.store.folders("t/")
    assert [unescaped(each.split("/")[1]) for each in found] == [
        written[key] for key in sorted(written)
    ]
    for key in written:
        assert await place.store.read(key) == key.encode()


@pytest.mark.spec("LOG-1")
@pytest.mark.parametrize("key", HOSTILE_KEYS)
async def test_what_is_no_key_is_refused(place: Place, key: str) -> None:
    for act in (
        place.store.put_new(key, b""),
        place.store.put(key, b""),
        place.store.read(key),
        place.store.read_end(key, 1),
        place.store.delete(key),
    ):
        with pytest.raises(BadKeyPart):
            await act


@pytest.mark.spec("LOG-1")
@pytest.mark.parametrize("prefix", ["/", "..", "../", "a//", "a/../", ".", "ü", "a\n", "k" * 1000])
async def test_what_begins_no_key_is_refused(place: Place, prefix: str) -> None:
    with pytest.raises(BadKeyPart):
        await place.store.folders(prefix)
    with pytest.raises(BadKeyPart):
        await keys(place.store, prefix)
    with pytest.raises(BadKeyPart):
        await keys(place.store, "", prefix)


async def _use_a_store_that_can_not_be_reached(place: Place) -> float:
    await place.store.put("a", b"")
    place.cut_off()
    store, began = place.store, time.monotonic()
    for act in (
        store.put_new("b", b"x"),
        store.put("b", b"x"),
        store.read("a"),
        store.read("b", 1, 2),
        store.read_end("a", 1),
        keys(store, ""),
        store.folders(""),
        store.delete("a"),
    ):
        with pytest.raises(Unavailable) as error:
            await act
        assert error.value.message
        assert error.value.hint
    return time.monotonic() - began


async def test_a_store_that_can_not_be_reached_says_so(place: Place) -> None:
    await _use_a_store_that_can_not_be_reached(place)


@pytest.mark.timing
async def test_a_store_that_can_not_be_reached_refuses_eight_calls_within_100_s(
    place: Place,
) -> None:
    # Their patience; none takes its bodies into account for more than 30 s.
    assert await _use_a_store_that_can_not_be_reached(place) < 100
