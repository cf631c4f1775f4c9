"""What the S3 store promises behind a network that fails: on a spoken S3 and on SeaweedFS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from lab.doorway import Doorway
from lab.seaweedfs import BUCKET
from lattice.adapters.objects import CallLimits
from lattice.adapters.objects.s3 import S3Address, S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.domain.objects import NoObject, ObjectStore
from tests.contract.faulty_proxy import Fault, FaultyProxy
from tests.contract.stores import s3_place
from tests.fakes.s3_server import SpokenS3

pytestmark = pytest.mark.timeout(180)

HASTY = CallLimits(small_s=0.6, slowest_bytes_per_s=50e6, first_pause_s=0.02)
"""For what will not be answered."""
STEADY = CallLimits(small_s=12.0, slowest_bytes_per_s=50e6, first_pause_s=0.02, try_share=0.12)
"""For what will be: a try that hangs ends soon, and two cores that are busy have their time."""


@dataclass
class Site:
    """`store` and `hasty` are reached through `proxy`, `straight` is not."""

    place: S3Address
    proxy: FaultyProxy
    unhindered: S3Address

    @cached_property
    def store(self) -> S3ObjectStore:
        return S3ObjectStore(self.place, SystemClock(), STEADY)

    @cached_property
    def hasty(self) -> S3ObjectStore:
        return S3ObjectStore(self.place, SystemClock(), HASTY)

    @cached_property
    def straight(self) -> S3ObjectStore:
        return S3ObjectStore(self.unhindered, SystemClock())


@pytest.fixture(params=["spoken", pytest.param("seaweedfs", marks=pytest.mark.lab)])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    if request.param == "spoken":
        async with SpokenS3(BUCKET) as spoken:
            async for each in _site(spoken.address, tmp_path):
                yield each
    else:
        doorway: Doorway = request.getfixturevalue("seaweed_doorway")
        async for each in _site(doorway.addresses[0], tmp_path):
            yield each


async def _site(address: str, folder: Path) -> AsyncIterator[Site]:
    async with FaultyProxy(address) as proxy:
        place = s3_place(address, folder)
        yield Site(replace(place, endpoint=f"http://{proxy.address}"), proxy, place)


async def _listed(store: ObjectStore) -> list[str]:
    return [each.key async for each in store.listing("")]


ACTS: dict[str, Callable[[ObjectStore], Awaitable[Any]]] = {
    "put_new": lambda store: store.put_new("new", b"body"),
    "put": lambda store: store.put("a", b"body"),
    "read": lambda store: store.read("a"),
    "read a range": lambda store: store.read("a", 1, 3),
    "read_end": lambda store: store.read_end("a", 3),
    "listing": _listed,
    "folders": lambda store: store.folders(""),
    "delete": lambda store: store.delete("other"),
}


WRITES = {"put_new", "put", "delete"}
"""Their answers have no body that could be torn."""
LASTING = [Fault.HANG, Fault.UNAVAILABLE, Fault.REFUSED, Fault.CUT_BEFORE, Fault.CUT_AFTER]
PASSING = [*(set(LASTING) - {Fault.REFUSED}), Fault.HANG_AFTER, Fault.DENIED_AFTER]


def cases(faults: list[Fault], reads: list[Fault]) -> list[Any]:
    return [
        pytest.param(act, fault, id=f"{act}, {fault.name.lower()}")
        for act in ACTS
        for fault in sorted(
            {*faults, *(() if act in WRITES else reads)}, key=lambda each: each.value
        )
    ]


async def _use_a_store_that_stays_away(site: Site, act: str, fault: Fault) -> float:
    await site.straight.put("a", b"body" * 100)
    site.proxy.always = fault
    began = time.monotonic()
    with pytest.raises(Unavailable) as error:
        await ACTS[act](site.hasty)
    took_s = time.monotonic() - began
    assert error.value.message.startswith("The object store ")
    assert error.value.hint
    assert BUCKET not in error.value.message or fault is Fault.REFUSED
    return took_s


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize(("act", "fault"), cases(LASTING, [Fault.TORN]))
async def test_a_store_that_stays_away_is_told(site: Site, act: str, fault: Fault) -> None:
    await _use_a_store_that_stays_away(site, act, fault)


@pytest.mark.timing
@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize(("act", "fault"), cases(LASTING, [Fault.TORN]))
async def test_a_store_that_stays_away_is_told_within_ten_seconds_of_patience(
    site: Site, act: str, fault: Fault
) -> None:
    assert await _use_a_store_that_stays_away(site, act, fault) < HASTY.small_s + 10


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize(("act", "fault"), cases(PASSING, [Fault.TORN, Fault.CONFLICT]))
async def test_a_single_fault_is_not_noticed(site: Site, act: str, fault: Fault) -> None:
    await site.straight.put("a", b"body" * 100)
    site.proxy.meet(fault)
    answered = await ACTS[act](site.store)
    expected = {
        "put_new": True,
        "read": b"body" * 100,
        "read a range": b"od",
        "read_end": (b"ody", 400),
        "listing": ["a"],
        "folders": (),
    }
    assert answered == expected.get(act)
    if act == "put_new":
        assert await site.straight.read("new") == b"body"


LOST = [Fault.CUT_AFTER, Fault.HANG_AFTER, Fault.DENIED_AFTER]


@pytest.mark.spec("LOG-1", "LOG-3")
@pytest.mark.parametrize("fault", LOST)
async def test_what_was_taken_by_oneself_is_not_taken(site: Site, fault: Fault) -> None:
    """The store has it, the answer was lost, and the second try finds the key taken."""
    for number, body in enumerate((b"ours", b"", b"x" * 300_000)):
        site.proxy.meet(fault)
        assert await site.store.put_new(f"k/{number}", body)
        assert await site.straight.read(f"k/{number}") == body
        assert not await site.store.put_new(f"k/{number}", body), "this time it is another's"


@pytest.mark.spec("LOG-1", "LOG-3")
@pytest.mark.parametrize("fault", [*LOST, Fault.UNAVAILABLE, Fault.CUT_BEFORE, Fault.HANG])
async def test_what_another_took_stays_taken(site: Site, fault: Fault) -> None:
    """Of the same size too: a try before says nothing about who came first."""
    for number, body in enumerate((b"theirs", b"longer than ours", b"")):
        await site.straight.put(f"k/{number}", body)
        site.proxy.meet(fault)
        assert not await site.store.put_new(f"k/{number}", b"ours!!")
        assert await site.straight.read(f"k/{number}") == body


@pytest.mark.spec("LOG-1")
async def test_two_who_conflict_are_not_both_sent_away(site: Site) -> None:
    """409 says that somebody wrote at the same time, not that anything is there."""
    site.proxy.meet(Fault.CONFLICT)
    assert await site.store.put_new("k", b"ours")
    assert await site.straight.read("k") == b"ours"
    site.proxy.meet(Fault.CONFLICT)
    assert not await site.store.put_new("k", b"ours")


@pytest.mark.spec("LOG-3")
async def test_an_unknown_outcome_is_not_called_success(site: Site) -> None:
    site.proxy.always = Fault.CUT_AFTER
    with pytest.raises(Unavailable):
        await site.hasty.put_new("k", b"ours")
    site.proxy.always = Fault.NONE
    assert not await site.store.put_new("k", b"ours")
    assert await site.store.read("k") == b"ours"


@pytest.mark.spec("LOG-1")
async def test_of_many_who_race_through_faults_one_wins(site: Site) -> None:
    for number in range(5):
        site.proxy.meet(*[Fault.CUT_AFTER, Fault.NONE, Fault.UNAVAILABLE] * 2)
        bodies = [b"body of %d" % who for who in range(8)]
        won = await asyncio.gather(
            *(site.store.put_new(f"r/{number}", body) for body in bodies), return_exceptions=True
        )
        stored = await site.straight.read(f"r/{number}")
        assert {won[bodies.index(stored)]} <= {True}
        assert [answer for answer in won if answer is True] == [True]
        assert all(isinstance(answer, bool | Unavailable) for answer in won)


async def test_a_request_that_is_given_up_is_ended(site: Site) -> None:
    site.proxy.always = Fault.HANG
    with pytest.raises(Unavailable) as error:
        await site.hasty.delete("k")
    assert "did not answer within 1 s" in error.value.message
    async with asyncio.timeout(60):
        await site.proxy.given_up.wait()


async def test_a_listing_may_be_cancelled_at_any_moment(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    for tenths_of_ms in range(0, 60, 4):
        # With its first answer a client starts a task in its runtime.
        fresh = S3ObjectStore(site.place, SystemClock(), STEADY)
        listing = asyncio.create_task(_listed(fresh))
        await asyncio.sleep(tenths_of_ms / 10_000)
        listing.cancel()
        try:
            await listing
        except asyncio.CancelledError:
            # The answer comes while the traceback still holds what the listing held.
            await asyncio.sleep(0.01)
    assert "panicked" not in capfd.readouterr().err


async def test_tries_are_few(site: Site) -> None:
    site.proxy.always = Fault.UNAVAILABLE
    with pytest.raises(Unavailable) as error:
        await site.store.put("k", b"")
    assert "503" in error.value.message
    assert site.proxy.seen["PUT"] == STEADY.tries
    site.proxy.always = Fault.REFUSED
    with pytest.raises(Unavailable) as error:
        await site.store.read("k")
    assert "objects.md" in (error.value.hint or "")
    assert site.proxy.seen["GET"] == 1, "a refusal is final"


@pytest.mark.spec("LOG-3")
async def test_a_bucket_that_is_not_there_is_no_missing_object(site: Site) -> None:
    lost = S3ObjectStore(replace(site.place, bucket="nobody-s"), SystemClock(), STEADY)
    for act in (lost.read("a"), lost.put_new("a", b""), lost.put("a", b""), _listed(lost)):
        with pytest.raises(Unavailable):
            await act


async def test_keys_that_were_changed_are_read_again(site: Site) -> None:
    site.place.secret_key_file.write_text("")
    with pytest.raises(Unavailable) as error:
        await site.store.read("a")
    assert "secret_key_file" in (error.value.hint or "")
    site.place.secret_key_file.write_text("found again")
    with pytest.raises((NoObject, Unavailable)):
        await site.store.read("a")
