"""How closely a job is measured: agreed, capped exactly, and over by itself."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import RateLimited
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.service.modes import (
    DEBUGGING,
    MODES,
    AgreedModes,
    SwitchedMode,
)
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.interleaved_state import InterleavedStateStore
from tests.fakes.manual_clock import ManualClock


class Site:
    """Replicas over one agreed state."""

    def __init__(self, most: int = 2, usual: Mode = Mode.PROD) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.most = most
        self.usual = usual
        self.unfinished: frozenset[str] | None = frozenset(f"{each}@1" for each in range(100))
        self.modes = self.replica(self.state)

    def replica(self, state: InMemoryStateStore) -> AgreedModes:
        return AgreedModes(
            state,
            InMemoryStateView(self.state, MODES),
            self.clock,
            lambda: self.unfinished,
            usual=self.usual,
            debug_most=self.most,
        )

    def order(self, job: int, mode: Mode = Mode.DEBUG, lasts_s: float | None = 600) -> SwitchedMode:
        now = self.clock.now().timestamp()
        until = None if lasts_s is None else now + lasts_s
        return SwitchedMode(
            allocation=f"{job}@1", mode=mode, until=until, set_by="alice", since=now
        )

    async def switch(self, job: int, mode: Mode = Mode.DEBUG, lasts_s: float | None = 600) -> None:
        await self.modes.switch(self.order(job, mode, lasts_s))


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("WATCH-3")
def test_nobody_switched_means_the_usual_one(site: Site) -> None:
    told = site.modes.of("1@1")
    assert (told.allocation, told.mode, told.interval_s) == ("1", Mode.PROD, 30.0)
    assert (told.until, told.set_by) == (None, "")


@pytest.mark.spec("WATCH-3")
async def test_debug_is_in_force_and_reverts_by_itself(site: Site) -> None:
    await site.switch(1)
    told = site.modes.of("1@1")
    assert (told.mode, told.interval_s, told.set_by) == (Mode.DEBUG, 1.0, "alice")
    assert told.until == site.clock.now().timestamp() + 600
    assert site.modes.of("1").mode is Mode.DEBUG
    assert site.modes.of("2@1").mode is Mode.PROD
    site.clock.advance(599)
    assert site.modes.of("1@1").mode is Mode.DEBUG
    site.clock.advance(1)
    assert site.modes.of("1@1").mode is Mode.PROD
    assert site.modes.debugging == 0


@pytest.mark.spec("WATCH-3")
async def test_the_same_id_used_again_is_another_allocation(site: Site) -> None:
    await site.switch(1, Mode.AUDIT, None)
    assert site.modes.of("1@2").mode is Mode.PROD


@pytest.mark.spec("WATCH-3")
async def test_the_cap_is_named_and_says_when_there_is_room(site: Site) -> None:
    await site.switch(1, lasts_s=60)
    await site.switch(2, lasts_s=600)
    with pytest.raises(RateLimited, match=r"2 allocations .* no more than 2 .*debug_most") as told:
        await site.switch(3)
    assert told.value.retry_after_s == 61
    assert site.modes.debugging == 2
    # Who is in it already may prolong it, and others may switch to what has no cap.
    await site.switch(1, lasts_s=900)
    await site.switch(3, Mode.AUDIT, None)
    await site.switch(2, Mode.PROD, None)
    await site.switch(3)
    assert site.modes.debugging == 2
    assert site.modes.of("3@1").mode is Mode.DEBUG
    assert site.modes.of("2@1").set_by == ""


@pytest.mark.spec("WATCH-3")
async def test_time_frees_a_place_and_takes_the_key_away(site: Site) -> None:
    await site.switch(1, lasts_s=60)
    await site.switch(2, lasts_s=600)
    site.clock.advance(61)
    await site.switch(3)
    assert await site.state.get(MODES + "1@1") is None
    assert await site.state.get(MODES + "2@1") is not None


@pytest.mark.spec("WATCH-3")
async def test_a_job_that_is_over_frees_its_place(site: Site) -> None:
    await site.switch(1)
    await site.switch(2)
    site.unfinished = None
    with pytest.raises(RateLimited):
        await site.switch(3)
    site.unfinished = frozenset({"2@1", "3@1"})
    await site.switch(3)
    assert await site.state.get(MODES + "1@1") is None


@pytest.mark.spec("WATCH-3")
async def test_a_site_may_allow_none() -> None:
    site = Site(most=0)
    with pytest.raises(RateLimited, match="no more than 0"):
        await site.switch(1)
    await site.switch(1, Mode.AUDIT, None)


@pytest.mark.spec("WATCH-3")
async def test_where_debug_is_usual_nobody_is_counted() -> None:
    site = Site(most=0, usual=Mode.DEBUG)
    assert site.modes.of("1@1").interval_s == 1.0
    await site.switch(1, Mode.PROD, None)
    assert site.modes.of("1@1").interval_s == 30.0
    await site.switch(1, Mode.DEBUG, None)
    assert site.modes.of("1@1").interval_s == 1.0
    assert await site.state.get(DEBUGGING) is None


async def test_what_was_switched_for_jobs_that_are_over_is_let_go(site: Site) -> None:
    await site.switch(1, Mode.AUDIT, None)
    await site.switch(2, Mode.AUDIT, None)
    site.unfinished = frozenset({"2@1", "3@1"})
    site.clock.advance(2 * 3600)
    await site.switch(3, Mode.AUDIT, None)
    assert await site.state.get(MODES + "1@1") is None
    assert await site.state.get(MODES + "2@1") is not None


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'"x"', b'{"allocation":"1@1","mode":"loud"}', b"[" * 5000]
)
async def test_garbage_in_the_state_is_the_usual_mode(site: Site, value: bytes) -> None:
    await site.state.put(MODES + "1@1", value)
    await site.state.put(DEBUGGING, value)
    assert site.modes.of("1@1").mode is Mode.PROD
    await site.switch(1)
    assert site.modes.of("1@1").mode is Mode.DEBUG


@pytest.mark.spec("WATCH-3")
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from([Mode.DEBUG, Mode.DEBUG, Mode.PROD, Mode.AUDIT]),
            st.lists(st.integers(0, 3), max_size=12),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 3),
)
async def test_however_servers_race_the_cap_is_kept(
    orders: list[tuple[int, Mode, list[int]]], most: int
) -> None:
    site = Site(most=most)
    shared = InterleavedStateStore(site.clock, site.state.space)

    async def switch(job: int, mode: Mode, turns: list[int]) -> bool:
        try:
            await site.replica(shared.door(turns)).switch(site.order(job, mode))
        except RateLimited:
            return False
        return True

    done = await asyncio.gather(*(switch(*each) for each in orders))
    assert site.modes.debugging <= most
    wanted = {job for (job, mode, _), _ in zip(orders, done, strict=True) if mode is Mode.DEBUG}
    if all(mode is Mode.DEBUG for _, mode, _ in orders):
        # Nobody is refused while there is room.
        assert site.modes.debugging == min(most, len(wanted))
