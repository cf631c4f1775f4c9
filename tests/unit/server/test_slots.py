"""Slots: never one too many, whoever races; and none that outlives its client or its replica."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.limits import DEFAULTS, LimitTable, Sessions
from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import RateLimited, Unavailable
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.state import Lease
from lattice.server.cluster.slots import PREFIX, Slot, Slots
from tests.eventually import eventually_async
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.interleaved_state import InterleavedStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.supervised import SupervisedLoops

LOGS, ATTACH = Sessions.STREAM_LOGS, Sessions.ATTACH


class Replica:
    """One server with its lease and its slots."""

    def __init__(self, store: InMemoryStateStore, lease: Lease, name: str, limit: int) -> None:
        self.store = store
        self.lease = lease
        table = LimitTable(dict(DEFAULTS) | dict.fromkeys(Sessions, limit))
        view = WatchedStateView(store, PREFIX, store.clock)
        self.slots = Slots(store, view, table, store.clock, replica=name, lease=self._lease)
        self.saw_revision = 0

    def _lease(self) -> int:
        if self.lease.lost:
            raise Unavailable("no lease")
        return self.lease.id

    @classmethod
    async def up(cls, store: InMemoryStateStore, name: str, limit: int) -> Replica:
        return cls(store, await store.lease(10), name, limit)

    def look(self) -> None:
        """What its watch would tell it."""
        for batch in self.store.space.history:
            for change in batch:
                if change.revision > self.saw_revision:
                    self.slots.saw(change)
        self.saw_revision = self.store.space.revision


def keys(store: InMemoryStateStore) -> list[str]:
    return [key for key in store.space.entries if key.startswith(PREFIX)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def pair(clock: ManualClock) -> tuple[Replica, Replica]:
    store = InMemoryStateStore(clock)
    return await Replica.up(store, "server-1", 5), await Replica.up(store.another(), "server-2", 5)


@pytest.mark.spec("LIMIT-1", "LIMIT-2")
async def test_the_sixth_session_is_refused_on_any_replica(pair: tuple[Replica, Replica]) -> None:
    one, two = pair
    held = [await each.slots.take("u", ATTACH, f"s{n}") for n, each in enumerate([one, two] * 2)]
    held.append(await one.slots.take("u", ATTACH, "s4"))
    for each in pair:
        with pytest.raises(RateLimited, match=r"\(5/5\)") as refused:
            await each.slots.take("u", ATTACH, "s5")
        assert refused.value.retry_after_s is None
    assert await two.slots.take("U", ATTACH, "s6"), "another caller has slots of her own"
    assert await two.slots.take("u", LOGS, "s7"), "another kind has slots of its own"
    await held[0].release()
    assert await two.slots.take("u", ATTACH, "s8")


@pytest.mark.spec("LIMIT-2")
async def test_a_session_that_resumes_elsewhere_takes_its_slot_along(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    held = [await one.slots.take("u", ATTACH, f"s{n}") for n in range(5)]
    moved = await two.slots.take("u", ATTACH, "s3")
    assert len(keys(one.store)) == 5
    one.look()
    assert held[3].gone.is_set()
    assert not any(slot.gone.is_set() for slot in (*held[:3], held[4]))
    await held[3].release()
    assert len(keys(one.store)) == 5, "it was not the old holder's to free"
    await moved.release()
    assert len(keys(one.store)) == 4


@pytest.mark.spec("LIMIT-2")
async def test_one_session_opened_twice_is_not_two_for_one(pair: tuple[Replica, Replica]) -> None:
    """Attack 23: the same id named again on the same replica ends the first."""
    one, _ = pair
    first = await one.slots.take("u", ATTACH, "s")
    second = await one.slots.take("u", ATTACH, "s")
    one.look()
    assert first.gone.is_set()
    assert not second.gone.is_set()
    await first.release()
    assert len(keys(one.store)) == 1


@pytest.mark.spec("LIMIT-1")
async def test_a_key_that_went_while_the_loop_was_down_is_put_again(
    pair: tuple[Replica, Replica],
) -> None:
    one, _ = pair
    supervisor = SupervisedLoops(one.store.clock)
    loop = Loop("slots", one.slots.run, OnFailure.RESTART)
    slot = await one.slots.take("u", LOGS, "s")
    one.store.space.end(one.lease.id)
    one.lease = await one.store.lease(10)
    assert keys(one.store) == []
    async with supervisor.running(loop):
        await eventually_async(lambda: not slot.key)
        await one.slots.tidy()
        assert keys(one.store) == [slot.key]
        assert not slot.gone.is_set()


@pytest.mark.story
@pytest.mark.spec("LIMIT-3")
async def test_a_lost_client_has_thirty_seconds(
    pair: tuple[Replica, Replica], clock: ManualClock
) -> None:
    one, two = pair
    slot = await one.slots.take("u", ATTACH, "s")
    await slot.client_lost()
    clock.advance(29)
    await one.slots.tidy()
    assert keys(one.store)
    await slot.client_back()
    clock.advance(29)
    await one.slots.tidy()
    assert keys(one.store), "it had come back"
    await slot.client_lost()
    clock.advance(30)
    await one.slots.tidy()
    assert slot.gone.is_set()
    assert not keys(one.store)
    assert two.slots.held == one.slots.held == 0


@pytest.mark.spec("LIMIT-3")
async def test_a_stuck_holder_can_not_keep_a_lost_clients_slot(
    pair: tuple[Replica, Replica], clock: ManualClock
) -> None:
    one, two = pair
    held = [await one.slots.take("u", ATTACH, f"s{n}") for n in range(5)]
    await held[2].client_lost()
    clock.advance(31)
    assert (await two.slots.take("u", ATTACH, "new")).key == held[2].key


@pytest.mark.spec("LIMIT-3")
async def test_a_dead_replicas_slots_go_with_its_lease(
    pair: tuple[Replica, Replica], clock: ManualClock
) -> None:
    one, two = pair
    for number in range(5):
        await one.slots.take("u", ATTACH, f"s{number}")
    one.store.die()
    clock.advance(11)
    two.store.sweep()
    assert await two.slots.take("u", ATTACH, "s9")


@pytest.mark.spec("LIMIT-2")
async def test_a_session_finds_its_place_again_after_its_lease_was_lost(
    pair: tuple[Replica, Replica], clock: ManualClock
) -> None:
    one, two = pair
    held = [await one.slots.take("u", ATTACH, f"s{n}") for n in range(5)]
    one.store.space.end(one.lease.id)
    taken = [await two.slots.take("u", ATTACH, f"new{n}") for n in range(2)]
    one.lease = await one.store.lease(10)
    one.look()
    await one.slots.tidy()
    assert len(keys(one.store)) == 5
    assert sum(slot.gone.is_set() for slot in held) == 2
    assert not any(slot.gone.is_set() for slot in taken)


@pytest.mark.spec("LIMIT-2")
async def test_while_nobody_can_count_terminals_are_refused_and_streams_are_not(
    pair: tuple[Replica, Replica],
) -> None:
    one, _ = pair
    one.store.away = True
    with pytest.raises(Unavailable, match="can't be counted"):
        await one.slots.take("u", ATTACH, "a")
    held = [await one.slots.take("u", LOGS, f"s{n}") for n in range(5)]
    with pytest.raises(RateLimited):
        await one.slots.take("u", LOGS, "s5")
    assert one.slots.blind_total == 5
    await held[0].release()
    one.store.away = False
    await one.slots.tidy()
    assert len(keys(one.store)) == 4


async def test_a_release_that_got_no_answer_is_made_again(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    slot = await one.slots.take("u", ATTACH, "s")
    one.store.away = True
    await slot.release()
    one.store.away = False
    assert keys(one.store)
    await one.slots.tidy()
    assert not keys(one.store)


async def test_a_put_that_got_no_answer_leaves_nothing_behind(
    pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    real = one.store.commit

    async def deaf(*arguments: object) -> int | None:
        await real(*arguments)  # type: ignore[arg-type]
        raise Unavailable("no answer")

    monkeypatch.setattr(one.store, "commit", deaf)
    with pytest.raises(Unavailable):
        await one.slots.take("u", ATTACH, "s")
    assert keys(one.store)
    monkeypatch.undo()
    await one.slots.tidy()
    assert not keys(one.store)


async def test_foreign_values_count_and_break_nothing(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    slot = await one.slots.take("u", ATTACH, "s")
    prefix = slot.key.rpartition("/")[0]
    for number, value in enumerate([b"", b"null", b'{"session": 3}', b"\xff"], 1):
        await one.store.put(f"{prefix}/{number}", value)
    with pytest.raises(RateLimited):
        await one.slots.take("u", ATTACH, "s2")


async def test_it_follows_its_view_by_itself(clock: ManualClock) -> None:
    store = InMemoryStateStore(clock)
    lease = await store.lease(10)
    view = WatchedStateView(store, PREFIX, clock)
    slots = Slots(store, view, LimitTable(), clock, replica="server-1", lease=lambda: lease.id)
    other = await Replica.up(store.another(), "server-2", 5)
    async with asyncio.timeout(60):
        tasks = [asyncio.ensure_future(view.run()), asyncio.ensure_future(slots.run())]
        slot = await slots.take("u", ATTACH, "s")
        await other.slots.take("u", ATTACH, "s")
        await slot.wait_gone()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


TURNS = st.lists(st.integers(0, 4), max_size=60)
STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "resume", "release", "lose"]), st.integers(0, 5)),
    max_size=12,
)


@pytest.mark.spec("LIMIT-2")
@given(limit=st.integers(0, 3), turns=st.tuples(TURNS, TURNS), steps=st.tuples(STEPS, STEPS))
def test_never_more_than_the_limit_over_any_interleaving(
    limit: int,
    turns: tuple[Sequence[int], Sequence[int]],
    steps: tuple[Sequence[tuple[str, int]], Sequence[tuple[str, int]]],
) -> None:
    asyncio.run(_race(limit, turns, steps))


class Race:
    """Two replicas, each with a caller's acts, and the most slots ever seen at once."""

    def __init__(self, limit: int) -> None:
        self.space = InterleavedStateStore(ManualClock())
        self.limit = limit
        self.most = 0
        self.refused = 0

    async def live(
        self, turns: Sequence[int], number: int, acts: Sequence[tuple[str, int]]
    ) -> list[Slot]:
        replica = await Replica.up(self.space.door(turns), f"server-{number}", self.limit)
        held: list[Slot] = []
        for place, act in enumerate(acts):
            try:
                await self._act(replica, held, (number, place), act)
            except RateLimited:
                self.refused += 1
            self.most = max(self.most, len(keys(self.space)))
        replica.look()
        return held

    async def _act(
        self, replica: Replica, held: list[Slot], here: tuple[int, int], act: tuple[str, int]
    ) -> None:
        (number, place), (verb, which) = here, act
        if verb == "take":
            held.append(await replica.slots.take("u", ATTACH, f"{number}-{place}"))
        elif verb == "resume":
            held.append(await replica.slots.take("u", ATTACH, f"{1 - number}-{which}"))
        elif held and verb == "release":
            await held.pop(which % len(held)).release()
        elif held:
            await held[which % len(held)].client_lost()


async def _race(
    limit: int,
    turns: tuple[Sequence[int], Sequence[int]],
    steps: tuple[Sequence[tuple[str, int]], Sequence[tuple[str, int]]],
) -> None:
    race = Race(limit)
    both = await asyncio.gather(*(race.live(turns[n], n, steps[n]) for n in range(2)))
    assert race.most <= limit
    assert limit < 3 or race.refused == 0 or race.most > 0
    for slot in (slot for held in both for slot in held):
        for batch in race.space.space.history:
            for change in batch:
                slot.slots.saw(change)
    # Of two that name one session, only the newer goes on.
    going = [slot for held in both for slot in held if not slot.gone.is_set()]
    assert len({slot.session for slot in going}) == len(going) == len(keys(race.space))
    for slot in going:
        await slot.release()
    assert not keys(race.space)
