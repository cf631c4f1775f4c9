"""The keeper: links that vanish, time that judges, two that vote, and blindness that doesn't."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import LatticeError
from lattice.domain.node import Condition
from lattice.domain.presence import (
    LINKS,
    NODES,
    Link,
    Presence,
    Times,
    linked,
    next_epoch,
    read_presence,
    written,
)
from lattice.domain.state import Expect, Put
from lattice.server.cluster.presence import SETTLE_S, PresenceKeeper
from tests.eventually import eventually_async
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.interleaved_state import InterleavedStateStore
from tests.fakes.manual_clock import ManualClock


class Watcher:
    """A replica's keeper, with views that look when told to."""

    def __init__(self, store: InMemoryStateStore, *, sensitive: bool = False) -> None:
        self.store = store
        self.views = [WatchedStateView(store, prefix, store.clock) for prefix in (LINKS, NODES)]
        self.keeper = PresenceKeeper(
            store, *self.views, store.clock, Times(), sensitive=lambda _: sensitive
        )

    async def look(self) -> None:
        for view in self.views:
            try:
                await view.refresh()
            except LatticeError:
                return

    async def judge(self) -> None:
        await self.look()
        await self.keeper.judge()


async def put_link(store: InMemoryStateStore, node: str = "n1", lease: int = 0) -> Link:
    """As the replica that holds the link does: both keys at once."""
    entry = await store.get(NODES + node)
    old = await store.get(LINKS + node)
    before = read_presence(node, entry.value) if entry else None
    now = store.clock.now().timestamp()
    link = Link(node=node, replica="server-1", epoch=next_epoch(before), since=now)
    after = linked(before, link, now)
    assert after is not None
    expect = [
        Expect(NODES + node, entry.revision if entry else 0),
        Expect(LINKS + node, old.revision if old else 0),
    ]
    puts = [Put(LINKS + node, written(link), lease), Put(NODES + node, written(after))]
    assert await store.commit(expect, puts)
    return link


async def record(store: InMemoryStateStore, node: str = "n1") -> Presence:
    entry = await store.get(NODES + node)
    assert entry is not None
    return read_presence(node, entry.value)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> InMemoryStateStore:
    return InMemoryStateStore(clock)


async def pass_time(clock: ManualClock, watcher: Watcher, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1)
        watcher.store.sweep()
        await watcher.judge()


@pytest.mark.spec("OPS-4")
async def test_a_replica_dies_and_its_agents_are_judged_by_time(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    dying, watcher = store.another(), Watcher(store)
    lease = await dying.lease(10)
    await put_link(dying, lease=lease.id)
    await pass_time(clock, watcher, 20)
    assert (await record(store)).linked
    dying.die()
    await pass_time(clock, watcher, 10)
    lost = await record(store)
    assert (lost.linked, lost.condition) == (False, Condition.READY)
    await pass_time(clock, watcher, 29)
    assert (await record(store)).condition is Condition.READY
    await pass_time(clock, watcher, 1)
    assert (await record(store)).condition is Condition.DEGRADED
    await pass_time(clock, watcher, 59)
    assert (await record(store)).condition is Condition.DEGRADED
    await pass_time(clock, watcher, 1)
    assert (await record(store)).condition is Condition.DOWN
    await watcher.look()
    assert watcher.keeper.gauges() == {
        "agents_linked": 0, "agents_lost": 0, "agents_degraded": 0, "agents_down": 1
    }  # fmt: skip
    await put_link(store)
    again = await record(store)
    assert (again.linked, again.condition, again.epoch) == (True, Condition.READY, 2)


@pytest.mark.spec("OPS-4")
async def test_only_agents_that_are_lost_or_changed_are_examined(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    examined: list[str] = []

    def sensitive(node: str) -> bool:
        examined.append(node)
        return False

    watcher = Watcher(store)
    watcher.keeper._sensitive = sensitive
    for number in range(50):
        await put_link(store, f"n{number}")
    await watcher.judge()
    assert len(examined) == 50
    examined.clear()
    await pass_time(clock, watcher, 5)
    assert examined == []
    store.space.entries.pop(LINKS + "n7")
    await pass_time(clock, watcher, 40)
    assert set(examined) == {"n7"}
    assert len(examined) >= 40
    await pass_time(clock, watcher, 60)
    assert (await record(store, "n7")).condition is Condition.DOWN
    examined.clear()
    await pass_time(clock, watcher, 5)
    assert examined == [], "time changes nothing more"
    await put_link(store, "n7")
    await pass_time(clock, watcher, 1)
    assert (await record(store, "n7")).linked
    assert set(watcher.keeper.presences().records) == {f"n{number}" for number in range(50)}


@pytest.mark.spec("OPS-4")
async def test_a_sensitive_node_has_ten_minutes(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    watcher = Watcher(store, sensitive=True)
    link = await put_link(store)
    store.space.entries.pop(LINKS + link.node)
    await watcher.judge()
    clock.advance(599)
    await watcher.judge()
    assert (await record(store)).condition is Condition.DEGRADED
    await pass_time(clock, watcher, 1)
    assert (await record(store)).condition is Condition.DOWN


@pytest.mark.spec("OPS-4")
async def test_a_new_replica_counts_from_the_time_written_down(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    first = Watcher(store)
    link = await put_link(store)
    store.space.entries.pop(LINKS + link.node)
    await first.judge()
    clock.advance(80)
    fresh = Watcher(store.another())
    await pass_time(clock, fresh, 9)
    assert (await record(store)).condition is Condition.READY, "it has only just begun to look"
    await pass_time(clock, fresh, 8)
    assert (await record(store)).condition is Condition.DOWN


@pytest.mark.spec("OPS-4")
async def test_who_is_blind_declares_nothing(store: InMemoryStateStore, clock: ManualClock) -> None:
    watcher = Watcher(store)
    link = await put_link(store)
    await pass_time(clock, watcher, 20)
    store.space.entries.pop(LINKS + link.node)
    await watcher.judge()
    store.away = True
    await pass_time(clock, watcher, 300)
    reading = watcher.keeper.presences()
    assert not reading.source.ok
    assert reading.source.age_s is not None
    assert reading.source.age_s >= 300
    assert reading.records["n1"].condition is Condition.READY
    store.away = False
    await pass_time(clock, watcher, int(SETTLE_S) - 1)
    assert (await record(store)).condition is Condition.READY
    await pass_time(clock, watcher, 3)
    assert (await record(store)).condition is Condition.DOWN


async def test_a_judgement_that_can_not_be_written_makes_it_look_anew(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    watcher = Watcher(store)
    link = await put_link(store)
    store.space.entries.pop(LINKS + link.node)
    await pass_time(clock, watcher, 29)
    await watcher.look()
    store.away = True
    clock.advance(2)
    with pytest.raises(LatticeError):
        await watcher.keeper.judge()
    store.away = False
    clock.advance(1)
    await watcher.judge()
    assert (await record(store)).condition is Condition.READY
    await put_link(store)
    await pass_time(clock, watcher, 60)
    assert (await record(store)).linked


@pytest.mark.spec("OPS-4")
async def test_a_late_judgement_does_not_override_a_newer_link(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    watcher = Watcher(store)
    link = await put_link(store)
    store.space.entries.pop(LINKS + link.node)
    await watcher.judge()
    await pass_time(clock, watcher, 28)
    await watcher.look()
    clock.advance(10)
    await put_link(store)
    await watcher.keeper.judge()
    assert watcher.keeper.counts.races_lost_total == 1
    now = await record(store)
    assert (now.linked, now.condition, now.epoch) == (True, Condition.READY, 2)


async def test_many_at_once_and_one_that_changed_meanwhile(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    watcher = Watcher(store)
    for number in range(100):
        await put_link(store, f"n{number}")
    await watcher.look()
    for number in range(100):
        store.space.entries.pop(f"{LINKS}n{number}")
    await watcher.look()
    await store.put(f"{LINKS}n7", written(Link(node="n7", replica="s", epoch=1, since=0.0)))
    await watcher.keeper.judge()
    gone = [n for n in range(100) if not (await record(store, f"n{n}")).linked]
    assert gone == [n for n in range(100) if n != 7]
    assert watcher.keeper.counts.changes_total == 99


async def test_records_that_say_nothing_are_left_alone(
    store: InMemoryStateStore, clock: ManualClock
) -> None:
    watcher = Watcher(store)
    await put_link(store)
    await store.put(LINKS + "n1", b"nonsense")
    await store.put(NODES + "n2", json.dumps({"node": "n3"}).encode())
    await pass_time(clock, watcher, 200)
    assert (await record(store)).linked
    assert set(watcher.keeper.presences().records) == {"n1"}


@pytest.mark.spec("OPS-4")
async def test_a_link_without_a_record_is_registered(store: InMemoryStateStore) -> None:
    await store.put(LINKS + "n1", written(Link(node="n1", replica="s", epoch=4, since=0.0)))
    await Watcher(store).judge()
    assert (await record(store)).epoch == 4


async def test_before_the_state_has_answered_nothing_is_known(store: InMemoryStateStore) -> None:
    store.away = True
    watcher = Watcher(store)
    await watcher.judge()
    reading = watcher.keeper.presences()
    assert not reading.records
    assert not reading.source.ok


@pytest.mark.spec("OPS-4")
@given(
    turns=st.tuples(*[st.lists(st.integers(0, 3), max_size=80)] * 3),
    acts=st.lists(st.sampled_from(["link", "drop", "wait", "long"]), max_size=12),
)
async def test_two_keepers_and_a_hub_in_any_order(
    turns: tuple[list[int], list[int], list[int]], acts: list[str]
) -> None:
    clock = ManualClock()
    space = InterleavedStateStore(clock)
    watchers = [Watcher(space.door(each)) for each in turns[:2]]
    hub = space.door(turns[2])

    async def judging(watcher: Watcher) -> None:
        for _ in range(8):
            await watcher.judge()
            await asyncio.sleep(0)

    async def acting() -> None:
        for act in acts:
            if act == "link":
                try:
                    await put_link(hub)
                except AssertionError:
                    await asyncio.sleep(0)
            elif act == "drop":
                space.space.entries.pop(LINKS + "n1", None)
            else:
                clock.advance(20 if act == "wait" else 100)

    await asyncio.gather(*map(judging, watchers), acting())
    await watchers[0].judge()
    await watchers[0].judge()
    if NODES + "n1" in space.space.entries:
        final = await record(space)
        assert final.linked == (LINKS + "n1" in space.space.entries)
        if final.linked:
            assert final.condition is Condition.READY


async def test_it_runs_by_itself(store: InMemoryStateStore, clock: ManualClock) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    views = [WatchedStateView(store, prefix, clock) for prefix in (LINKS, NODES)]
    keeper = PresenceKeeper(store, *views, clock, Times(), sleep=sleep)
    link = await put_link(store)
    for view in views:
        await view.refresh()
    store.space.entries.pop(LINKS + link.node)
    for view in views:
        await view.refresh()
    task = asyncio.ensure_future(keeper.run())
    await eventually_async(lambda: record(store), lambda found: not found.linked)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert all(0.75 <= each <= 1.25 for each in slept)
    assert len(set(slept)) > 1 or len(slept) == 1
