"""Data keys of allocations: one for all servers, wrapped again, and destroyed for ever."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.audit import AuditAct, SensitiveAuditRequired
from lattice.domain.sealed import BadSealed, open_object, seal_object
from lattice.domain.state import Entry
from lattice.foundation.data_keys import (
    CHECK_EVERY_S,
    ENDED_MOST_S,
    ENDED_S,
    KEYS,
    UNUSED_S,
    DataKeys,
    KeyRecord,
    named,
)
from tests.eventually import eventually_async
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_site_keys import InMemorySiteKeys
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.required_trail import RequiredTrail

JOB = allocation(41, "alice", "research")
OTHER = allocation(42, "bob", "genomics")


class Site:
    """Servers with the same agreed state and the same keys of the site."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.site_keys = InMemorySiteKeys("site-1")
        self.unfinished: frozenset[str] | None = frozenset({JOB.ref, OTHER.ref})
        self.trail = RequiredTrail()

    def server(self, cluster: str = "c1") -> DataKeys:
        async def cluster_id() -> str:
            return cluster

        return DataKeys(self.state, self.site_keys, cluster_id, self.clock, lambda: self.unfinished)

    async def record(self, job: Allocation = JOB) -> KeyRecord:
        entry = await self.state.get(KEYS + job.ref)
        assert entry is not None
        return msgspec.json.decode(entry.value, type=KeyRecord)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("LOG-8")
async def test_nothing_is_made_while_the_key_service_is_away(site: Site) -> None:
    site.site_keys.away = True
    with pytest.raises(Unavailable):
        await site.server().key_of(JOB)
    assert await site.state.get(KEYS + JOB.ref) is None


async def test_nothing_is_made_while_the_state_is_away(site: Site) -> None:
    site.state.away = True
    with pytest.raises(Unavailable):
        await site.server().key_of(JOB)
    site.state.away = False
    assert await site.server().key_of(JOB) is not None


async def test_nothing_is_made_while_the_first_submit_is_unknown(site: Site) -> None:
    with pytest.raises(Unavailable, match="first submitted"):
        await site.server().key_of(replace(JOB, first_submitted=None))


@pytest.mark.spec("LOG-8")
async def test_servers_that_ask_at_once_have_one_key(site: Site) -> None:
    servers = [site.server() for _ in range(10)]
    keys = await asyncio.gather(*(each.key_of(JOB) for each in servers for _ in range(3)))
    assert len({(each.id, each.secret) for each in keys}) == 1
    assert sum(each.counts.made_total for each in servers) == 1


async def test_each_allocation_has_its_own(site: Site) -> None:
    server = site.server()
    assert (await server.key_of(JOB)).secret != (await server.key_of(OTHER)).secret


async def test_a_job_number_that_is_used_again_has_another_key(site: Site) -> None:
    server = site.server()
    assert JOB.first_submitted is not None
    again = replace(JOB, first_submitted=JOB.first_submitted.replace(year=2031))
    assert (await server.key_of(JOB)).secret != (await server.key_of(again)).secret


@pytest.mark.spec("LOG-8")
async def test_the_state_has_the_secret_wrapped_only(site: Site) -> None:
    key = await site.server().key_of(JOB)
    entry = await site.state.get(KEYS + JOB.ref)
    assert entry is not None
    assert key.secret not in entry.value
    assert key.secret.hex().encode() not in entry.value
    assert key.secret not in (await site.record()).secret


async def test_a_later_server_has_the_same_key(site: Site) -> None:
    key = await site.server().key_of(JOB)
    assert await site.server().existing(JOB.ref) == key


@pytest.mark.spec("LOG-8")
async def test_a_record_that_was_moved_does_not_open(site: Site) -> None:
    await site.server().key_of(JOB)
    entry = await site.state.get(KEYS + JOB.ref)
    assert entry is not None
    await site.state.put(KEYS + OTHER.ref, entry.value)
    with pytest.raises(DataUnavailable):
        await site.server().key_of(OTHER)


async def test_a_record_of_another_cluster_does_not_open(site: Site) -> None:
    await site.server("c1").key_of(JOB)
    with pytest.raises(DataUnavailable):
        await site.server("c2").key_of(JOB)


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff", b'{"id":"zz"}', b"[" * 9999])
async def test_a_record_that_is_none_is_named_and_not_replaced(site: Site, value: bytes) -> None:
    await site.state.put(KEYS + JOB.ref, value)
    with pytest.raises(DataUnavailable, match="can't be read"):
        await site.server().key_of(JOB)
    entry = await site.state.get(KEYS + JOB.ref)
    assert entry is not None
    assert entry.value == value


async def test_a_read_makes_no_key(site: Site) -> None:
    server = site.server()
    with pytest.raises(DataUnavailable):
        await server.existing(JOB.ref)
    assert not await server.is_sealed(JOB.ref)
    assert await site.state.get(KEYS + JOB.ref) is None


async def test_a_new_key_is_known_to_other_servers_within_seconds(site: Site) -> None:
    reader = site.server()
    assert not await reader.is_sealed(JOB.ref)
    await site.server().key_of(JOB)
    site.clock.advance(3)
    assert await reader.is_sealed(JOB.ref)


async def test_while_the_state_is_away_only_one_question_in_five_seconds_waits(site: Site) -> None:
    asked = 0
    get = site.state.get

    async def counted(key: str) -> Entry | None:
        nonlocal asked
        asked += 1
        return await get(key)

    site.state.get = counted  # type: ignore[method-assign]
    site.state.away = True
    reader = site.server()
    for _ in range(10):
        with pytest.raises(Unavailable):
            await reader.is_sealed(JOB.ref)
    assert asked == 1
    site.state.away = False
    site.clock.advance(5)
    assert not await reader.is_sealed(JOB.ref)


async def test_what_was_not_used_for_longest_is_forgotten_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.foundation.data_keys._MOST_CACHED", 2)
    server = site.server()
    for each in (JOB, OTHER, JOB, allocation(43, "bob", "genomics")):
        await server.key_of(each)
    assert JOB.ref in server.cached
    assert OTHER.ref not in server.cached


async def test_questions_that_failed_leave_nothing_behind(site: Site) -> None:
    server = site.server()
    await server.key_of(JOB)
    site.clock.advance(UNUSED_S)
    server.forget_unused()
    site.site_keys.away = True
    with pytest.raises(Unavailable):
        await server.key_of(JOB)
    assert server._turns == {}


async def test_what_is_cached_needs_no_key_service(site: Site) -> None:
    server = site.server()
    key = await server.key_of(JOB)
    site.site_keys.away = site.state.away = True
    assert await server.key_of(JOB) == key
    assert site.site_keys.asked == 0


async def test_a_secret_is_forgotten_when_nobody_uses_it(site: Site) -> None:
    server = site.server()
    await server.key_of(JOB)
    site.clock.advance(UNUSED_S - 1)
    server.forget_unused()
    assert server.cached == (JOB.ref,)
    site.clock.advance(2)
    server.forget_unused()
    assert server.cached == ()
    assert await server.key_of(JOB) is not None


async def test_a_secret_is_forgotten_soon_after_the_end(site: Site) -> None:
    server = site.server()
    await server.key_of(JOB)
    await server.key_of(OTHER)
    site.unfinished = frozenset({OTHER.ref})
    site.clock.advance(ENDED_S)
    server.forget_unused()
    assert server.cached == (OTHER.ref,)


@pytest.mark.spec("LOG-8")
async def test_a_key_that_another_server_destroyed_is_forgotten_although_it_is_used(
    site: Site,
) -> None:
    reader = site.server()
    await reader.key_of(JOB)
    site.unfinished = frozenset()
    reader.forget_unused()
    assert await site.server().destroy(JOB.ref, "retention", site.trail)
    for _ in range(int(ENDED_MOST_S / CHECK_EVERY_S)):
        assert await reader.existing(JOB.ref) is not None
        site.clock.advance(CHECK_EVERY_S)
        reader.forget_unused()
    assert reader.cached == ()
    with pytest.raises(DataUnavailable, match="destroyed"):
        await reader.existing(JOB.ref)


async def test_a_key_in_use_stays_while_its_allocation_runs(site: Site) -> None:
    server = site.server()
    for _ in range(int(2 * ENDED_MOST_S / CHECK_EVERY_S)):
        await server.key_of(JOB)
        site.clock.advance(CHECK_EVERY_S)
        server.forget_unused()
    assert server.counts.unwrapped_total == 0


async def test_without_a_key_in_memory_the_jobs_are_not_listed(site: Site) -> None:
    """A list of 50 000 takes time, and most servers have no sensitive work."""
    asked: list[str] = []

    def unfinished() -> frozenset[str]:
        asked.append("jobs")
        return frozenset()

    server = site.server()
    server._unfinished = unfinished
    server.forget_unused()
    assert asked == []
    await server.key_of(JOB)
    server.forget_unused()
    assert asked == ["jobs"]


async def test_a_server_without_slurm_forgets_later(site: Site) -> None:
    server = site.server()
    await server.key_of(JOB)
    site.unfinished = None
    site.clock.advance(ENDED_S + CHECK_EVERY_S)
    server.forget_unused()
    assert server.cached == (JOB.ref,)


@pytest.mark.spec("LOG-8")
async def test_keys_are_wrapped_again_and_stay_the_same(site: Site) -> None:
    key = await site.server().key_of(JOB)
    site.site_keys.rotate("site-2")
    assert await site.server().wrap_again() == 1
    assert (await site.record()).site_key == "site-2"
    del site.site_keys.keys["site-1"]
    assert await site.server().existing(JOB.ref) == key
    assert await site.server().wrap_again() == 0


async def test_keys_are_wrapped_again_at_once_on_request(site: Site) -> None:
    server = site.server()
    await server.key_of(JOB)
    site.site_keys.rotate("site-2")
    site.site_keys.away = True
    wrapping = asyncio.create_task(server.run_wrapping())
    try:
        await eventually_async(lambda: server.trouble)
        site.site_keys.away = False
        server.wrap_soon()
        record = await eventually_async(site.record, lambda found: found.site_key == "site-2")
        assert record.site_key == "site-2"
    finally:
        wrapping.cancel()


async def test_two_servers_wrap_each_key_once(site: Site) -> None:
    await site.server().key_of(JOB)
    await site.server().key_of(OTHER)
    site.site_keys.rotate("site-2")
    counts = await asyncio.gather(*(site.server().wrap_again() for _ in range(2)))
    assert sum(counts) == 2
    assert {(await site.record(each)).site_key for each in (JOB, OTHER)} == {"site-2"}


async def test_a_key_that_can_not_be_unwrapped_stays_and_stops_no_other(site: Site) -> None:
    server = site.server()
    await server.key_of(JOB)
    site.site_keys.rotate("site-2")
    await server.key_of(OTHER)
    before = await site.record()
    del site.site_keys.keys["site-1"]
    site.site_keys.rotate("site-3")
    with pytest.raises(Unavailable, match="site-1"):
        await server.wrap_again()
    assert await site.record() == before
    assert (await site.record(OTHER)).site_key == "site-3"
    assert server.counts.failures_total == 1


@pytest.mark.spec("LOG-8")
async def test_what_was_sealed_with_a_destroyed_key_opens_for_nobody(site: Site) -> None:
    server = site.server()
    sealed = seal_object(await server.key_of(JOB), b"name", b"diagnosis: none")
    assert await server.destroy(JOB.ref, "retention of 30 days", site.trail)
    assert server.cached == ()
    with pytest.raises(DataUnavailable, match="destroyed"):
        await server.existing(JOB.ref)
    # A later key of the same allocation is another one.
    again = await server.key_of(JOB)
    with pytest.raises(BadSealed):
        open_object(again, b"name", sealed)
    (event,) = site.trail.events
    assert event.act is AuditAct.KEY_DESTROYED
    assert (event.allocation, event.owner, event.detail) == (
        JOB.ref,
        JOB.user,
        "retention of 30 days",
    )


async def test_a_key_is_not_destroyed_without_its_entry(site: Site) -> None:
    server = site.server()
    key = await server.key_of(JOB)
    site.trail.is_away = True
    with pytest.raises(SensitiveAuditRequired):
        await server.destroy(JOB.ref, "retention", site.trail)
    assert await site.server().existing(JOB.ref) == key


async def test_a_retry_of_a_destruction_is_the_same_event(site: Site) -> None:
    await site.server().key_of(JOB)
    first, second = site.server(), site.server()
    site.state.away = False
    assert await first.destroy(JOB.ref, "retention", site.trail)
    assert not await second.destroy(JOB.ref, "retention", site.trail)
    assert len({each.event for each in site.trail.events}) == 1


def test_an_allocation_is_named_with_its_first_submit() -> None:
    assert named(JOB) == JOB.ref
    assert "@" in named(JOB)
