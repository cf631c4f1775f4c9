"""The writer of the audit log: committed before the act, once for each event, without a fork."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.sqlite.store import open_sqlite
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.audit import AuditAct, AuditEntry, AuditEvent, SensitiveAuditRequired
from lattice.domain.audit_chain import ChainVerifier
from lattice.domain.state import Change, Entry, Expect, Listing, Put, StateStore
from lattice.features.audit.service import log as log_module
from lattice.features.audit.service.chain import AuditChain
from lattice.features.audit.service.head import BLOCKS, HEAD
from lattice.features.audit.service.log import AuditLog
from tests.fakes.audit import CLUSTER, AuditReplica, attach, audit_replica
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.interleaved_state import InterleavedStateStore

CLOCK = SystemClock()
KEY, NEXT = SigningKey.generate(), SigningKey.generate()


@asynccontextmanager
async def running(*logs: AuditLog) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in logs]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def verified(state: StateStore) -> ChainVerifier:
    """The chain in the store, from its first entry."""
    verifier = ChainVerifier.from_beginning(CLUSTER)
    for entry in (await state.list(BLOCKS)).entries:
        verifier.feed_all(entry.value)
    verifier.finish()
    return verifier


async def events(state: StateStore) -> list[str]:
    replica = audit_replica(state, CLOCK, KEY, (NEXT.public,))
    await replica.chain.refresh()
    found = [each for batch in replica.chain.batches for each in batch.entries]
    return [each.event for each in found if each.act is not AuditAct.KEY_CHANGE]


@pytest.mark.spec("AUDIT-2")
async def test_an_entry_is_committed_before_the_act_goes_on() -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    async with running(replica.log):
        entry = await replica.log.require(attach("e1"))
        assert entry.sequence == 2
        assert await events(state) == ["e1"]
    assert (await verified(state)).last_key == KEY.name


class CountedStateStore(InMemoryStateStore):
    """Counts what is read, and can let another replica commit first."""

    def __init__(self) -> None:
        super().__init__(CLOCK)
        self.read: list[str] = []
        self.before_commit: Callable[[], Awaitable[None]] | None = None

    async def get(self, key: str) -> Entry | None:
        self.read.append(key)
        return await super().get(key)

    async def list(self, prefix: str) -> Listing:
        self.read.append(prefix)
        return await super().list(prefix)

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        first, self.before_commit = self.before_commit, None
        if first is not None:
            await first()
        return await super().commit(expect, changes)


async def test_what_came_meanwhile_goes_with_a_batch_that_has_to_wait() -> None:
    state = CountedStateStore()
    ours, other = audit_replica(state, CLOCK, KEY), audit_replica(state, CLOCK, KEY)
    await ours.chain.append([attach("e0")])
    waiting: list[asyncio.Task[AuditEntry]] = []

    async def first() -> None:
        await other.chain.append([attach("other")])
        waiting.append(asyncio.create_task(ours.log.require(attach("late"))))
        await asyncio.sleep(0)

    state.before_commit = first
    async with running(ours.log):
        entry = await ours.log.require(attach("early"))
        late = await waiting[0]
    assert {entry.sequence, late.sequence} == {4, 5}
    assert [len(each.entries) for each in ours.chain.batches] == [2, 1, 2]
    await verified(state)


@pytest.mark.parametrize("batches", [1, 3, 30])
async def test_a_replica_reads_only_what_others_added(batches: int) -> None:
    state = CountedStateStore()
    ours, other = audit_replica(state, CLOCK, KEY), audit_replica(state, CLOCK, KEY)
    for number in range(50):
        await ours.chain.append([attach(f"ours-{number}")])
    known = ours.chain.batches
    for number in range(batches):
        await other.chain.append([attach(f"other-{number}")])
    state.read.clear()
    await ours.chain.refresh()
    assert len(state.read) <= min(batches, 20) + 2
    # Those that it knew are the same objects: they are not parsed again.
    assert all(one is two for one, two in zip(known, ours.chain.batches, strict=False))
    assert len(ours.chain.batches) == len(known) + batches
    await ours.chain.append([attach("next")])
    await verified(state)


@pytest.mark.spec("AUDIT-2")
async def test_many_callers_share_one_commit() -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    async with running(replica.log):
        found = await asyncio.gather(*(replica.log.require(attach(f"e{n}")) for n in range(200)))
    assert sorted(each.sequence for each in found) == list(range(2, 202))
    assert len((await state.list(BLOCKS)).entries) < 10


@pytest.mark.spec("AUDIT-2")
async def test_without_the_state_a_sensitive_act_is_refused() -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    state.away = True
    async with running(replica.log):
        with pytest.raises(SensitiveAuditRequired, match="SensitiveAuditRequired"):
            await replica.log.require(attach("e1"))
        state.away = False
        await replica.log.require(attach("e2"))
    assert "e2" in await events(state)


class LosesAnswers(InMemoryStateStore):
    """Commits, and then loses the answer, as often as `lose` says."""

    lose = 0

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        done = await super().commit(expect, changes)
        if self.lose:
            self.lose -= 1
            raise Unavailable("The answer was lost.")
        return done


@pytest.mark.spec("AUDIT-2")
async def test_a_retry_with_the_same_id_gives_the_same_entry() -> None:
    state = LosesAnswers(CLOCK)
    one, other = audit_replica(state, CLOCK, KEY), audit_replica(state, CLOCK, KEY)
    async with running(one.log, other.log):
        first = await one.log.require(attach("e1"))
        assert await one.log.require(attach("e1")) == first
        assert await other.log.require(attach("e1")) == first
        state.lose = 1
        with pytest.raises(SensitiveAuditRequired):
            await one.log.require(attach("e2"))
        # The commit had happened: a retry finds it, at either server.
        again = await other.log.require(attach("e2"))
        assert await one.log.require(attach("e2")) == again
    assert await events(state) == ["e1", "e2"]


async def test_a_batch_with_one_event_twice_has_one_entry() -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    found = await replica.chain.append([attach("e1"), attach("e1"), attach("e2")])
    assert [each.sequence for each in found] == [2, 2, 3]


@pytest.mark.spec("AUDIT-2")
@given(
    schedules=st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=2, max_size=3),
    counts=st.lists(st.integers(1, 6), min_size=3, max_size=3),
)
def test_replicas_that_race_never_fork_the_chain(
    schedules: list[list[int]], counts: list[int]
) -> None:
    async def race() -> None:
        state = InterleavedStateStore(CLOCK)
        doors = [state.door(each) for each in schedules]
        replicas = [audit_replica(each, CLOCK, KEY) for each in doors]
        ids = [[f"r{n}-{m}" for m in range(counts[n])] for n in range(len(replicas))]

        async def record(replica: AuditReplica, own: list[str]) -> None:
            for each in own:
                await replica.chain.append([attach(each), attach("shared")])

        await asyncio.gather(*map(record, replicas, ids))
        found = await events(state)
        assert sorted(found) == sorted([*(each for own in ids for each in own), "shared"])
        assert (await verified(state)).point.sequence == len(found) + 1

    asyncio.run(race())


@pytest.mark.spec("AUDIT-2")
async def test_ordinary_events_wait_for_the_state_and_nobody_waits_for_them() -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    state.away = True
    for n in range(300):
        replica.log.note(attach(f"e{n}"))
    assert not await replica.log.flush()
    state.away = False
    assert await replica.log.flush()
    assert await events(state) == [f"e{n}" for n in range(300)]


async def test_an_event_whose_commit_lost_its_answer_is_recorded_once() -> None:
    state = LosesAnswers(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    replica.log.note(attach("e1"))
    state.lose = 1
    assert not await replica.log.flush()
    assert await replica.log.flush()
    assert await events(state) == ["e1"]


@pytest.mark.spec("AUDIT-2")
async def test_a_server_that_stops_within_a_commit_loses_no_event() -> None:
    state = CountedStateStore()
    replica = audit_replica(state, CLOCK, KEY)
    begun, never = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        begun.set()
        await never.wait()

    state.before_commit = hangs
    replica.log.note(attach("e1"))
    async with running(replica.log):
        await begun.wait()
    state.before_commit = None
    await replica.log.close()
    assert await events(state) == ["e1"]


async def test_a_defect_loses_no_event_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    append = AuditChain.try_append

    async def fails(chain: AuditChain, events: Sequence[AuditEvent]) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(AuditChain, "try_append", fails)
    replica.log.note(attach("e1"))
    required = asyncio.create_task(replica.log.require(attach("e2")))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await replica.log.flush()
    with pytest.raises(SensitiveAuditRequired):
        await required
    monkeypatch.setattr(AuditChain, "try_append", append)
    replica.log.note(attach("e3"))
    assert await replica.log.flush()
    gap, last = await events(state)
    assert gap.startswith("gap-")
    assert last == "e3"
    assert replica.log.lost_total == 1


async def test_events_above_the_queue_are_counted_and_recorded_as_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "MOST_QUEUED", 3)
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    for n in range(10):
        replica.log.note(attach(f"e{n}"))
    assert replica.log.lost_total == 7
    assert await replica.log.flush()
    gap, *rest = (
        each
        for batch in replica.chain.batches
        for each in batch.entries
        if each.act is not AuditAct.KEY_CHANGE
    )
    assert gap.act is AuditAct.GAP
    assert gap.detail.startswith("7 events")
    assert [each.event for each in rest] == ["e0", "e1", "e2"]
    replica.log.note(attach("e10"))
    assert await replica.log.flush()
    assert (await events(state))[-1] == "e10"


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-2")
async def test_a_replica_does_not_append_to_a_changed_log() -> None:
    state = InMemoryStateStore(CLOCK)
    await audit_replica(state, CLOCK, KEY).chain.append([attach("e1"), attach("e2")])
    (block,) = (await state.list(BLOCKS)).entries
    await state.put(block.key, block.value.replace(b'"alice"', b'"malice"', 1))
    other = audit_replica(state, CLOCK, KEY)
    async with running(other.log):
        with pytest.raises(SensitiveAuditRequired, match="damaged: entry 2"):
            await other.log.require(attach("e3"))


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-2")
async def test_a_rolled_back_state_is_noticed() -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    await replica.chain.append([attach("e1")])
    old = await state.list("audit/")
    await replica.chain.append([attach("e2")])
    newer = (await state.list(BLOCKS)).entries[-1].key
    await state.commit([], [Put(each.key, each.value) for each in old.entries])
    await state.put(newer, b"")
    other = audit_replica(state, CLOCK, KEY)
    await other.chain.refresh()
    await replica.chain.refresh()
    assert replica.chain.rollbacks == 1
    assert replica.chain.recorded("e2") is None


@pytest.mark.spec("AUDIT-2")
async def test_the_next_key_is_named_by_the_old_one() -> None:
    state = InMemoryStateStore(CLOCK)
    await audit_replica(state, CLOCK, KEY).chain.append([attach("e1")])
    early = audit_replica(state, CLOCK, NEXT, (KEY.public,))
    with pytest.raises(Unavailable, match="does not trust the key"):
        await early.chain.append([attach("e2")])
    await audit_replica(state, CLOCK, KEY, (NEXT.public,)).chain.append([attach("e3")])
    await early.chain.append([attach("e4")])
    assert (await verified(state)).last_key == NEXT.name


@pytest.mark.spec("AUDIT-2")
async def test_the_log_is_the_same_on_a_database_of_one_server(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path) as state:
        one, other = audit_replica(state, CLOCK, KEY), audit_replica(state, CLOCK, KEY)
        async with running(one.log, other.log):
            await asyncio.gather(
                *(each.log.require(attach(f"e{n}")) for n in range(20) for each in (one, other))
            )
        assert len(await events(state)) == 20
        assert (await verified(state)).point.sequence == 21


async def test_the_log_stops_before_it_fills_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    await replica.chain.append([attach("e1")])
    monkeypatch.setattr("lattice.features.audit.service.chain.MOST_RETAINED_BYTES", 100)
    with pytest.raises(Unavailable, match="no room"):
        await replica.chain.append([attach("e2")])


def test_an_event_has_a_plain_id() -> None:
    for wrong in ("", "a b", "ä", "x" * 65):
        with pytest.raises(ValueError, match="id of an event"):
            AuditEvent(event=wrong, act=AuditAct.LOCK)


async def test_a_head_that_can_not_be_read_stops_the_log() -> None:
    state = InMemoryStateStore(CLOCK)
    await state.put(HEAD, b"{}")
    chain: AuditChain = audit_replica(state, CLOCK, KEY).chain
    with pytest.raises(Unavailable, match="head can't be read"):
        await chain.append([attach("e1")])


@pytest.mark.spec("AUDIT-2")
async def test_the_longest_entries_fit_into_batches() -> None:
    state = InMemoryStateStore(CLOCK)
    replica = audit_replica(state, CLOCK, KEY)
    text = "\N{GRINNING FACE}" * 900
    for n in range(20):
        replica.log.note(attach(f"e{n}", text, sub=text, detail=text, target=text, tenant=text))
    assert await replica.log.flush()
    assert len(await events(state)) == 20
