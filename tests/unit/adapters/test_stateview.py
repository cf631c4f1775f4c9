"""The cached copy: current while the store is there, old and labelled while it is not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import Unavailable
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.state import Changed, Delete, Expect, Listing, Put
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.supervised import SupervisedLoops


class Bell:
    """Stands for `asyncio.sleep`: who sleeps wakes when it rings."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._event = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self._event.wait()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStateStore(self.clock)
        self.bell = Bell()
        self.view = WatchedStateView(self.store, "nodes/", self.clock, sleep=self.bell)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.view.run())
        await settle()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def seen(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in self.view.entries.items()}


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_it_lists_then_follows() -> None:
    scene = Scene()
    await scene.store.put("nodes/a", b"1")
    await scene.store.put("other", b"x")
    async with scene.running():
        assert scene.seen() == {"nodes/a": b"1"}
        await scene.store.commit(
            [Expect("nodes/b", 0)], [Put("nodes/b", b"2"), Delete("nodes/a"), Put("other", b"y")]
        )
        await settle()
        assert scene.seen() == {"nodes/b": b"2"}
        assert scene.view.source.ok


async def test_a_snapshot_stays_as_it_was() -> None:
    scene = Scene()
    async with scene.running():
        before = scene.view.entries
        await scene.store.put("nodes/a", b"1")
        await settle()
        assert dict(before) == {}
        assert scene.view.entries is scene.view.entries


async def test_one_key_is_read_as_it_was_seen_last() -> None:
    scene = Scene()
    await scene.store.put("nodes/a", b"1")
    async with scene.running():
        entry = scene.view.get("nodes/a")
        assert entry is not None
        assert entry.value == b"1"
        assert scene.view.get("nodes/b") is None
        await scene.store.commit([], [Delete("nodes/a")])
        await settle()
        assert scene.view.get("nodes/a") is None


async def test_a_reader_has_first_every_entry_and_then_the_newest_of_each_changed_key() -> None:
    scene = Scene()
    early = scene.view.reader()
    await scene.store.put("nodes/a", b"1")
    await scene.store.put("nodes/b", b"1")
    assert early.take() == ()
    async with scene.running():
        late = scene.view.reader()
        for reader in (early, late):
            assert [each.key for each in reader.take()] == ["nodes/a", "nodes/b"]
            assert reader.take() == ()
        for value in (b"2", b"3"):
            await scene.store.put("nodes/a", value)
        await scene.store.commit([], [Delete("nodes/b")])
        await settle()
        for reader in (early, late):
            found = {each.key: each.entry and each.entry.value for each in reader.take()}
            assert found == {"nodes/a": b"3", "nodes/b": None}


async def test_a_reader_that_nobody_refers_to_costs_nothing() -> None:
    scene = Scene()
    reader = scene.view.reader()
    assert len(scene.view._readers) == 1
    del reader
    gc.collect()
    assert len(scene.view._readers) == 0


async def test_before_the_first_answer_there_is_nothing_to_read() -> None:
    scene = Scene()
    scene.store.away = True
    async with scene.running():
        with pytest.raises(Unavailable, match="has not answered yet"):
            _ = scene.view.entries
        with pytest.raises(Unavailable, match="has not answered yet"):
            scene.view.get("nodes/a")
        assert not scene.view.source.ok
        assert scene.view.source.as_of is None
        scene.store.away = False
        scene.bell.ring()
        await asyncio.wait_for(scene.view.wait_first(), 60)
        assert scene.seen() == {}
        assert scene.view.source.ok


async def test_a_defect_is_logged_and_the_view_follows_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    supervisor = SupervisedLoops(scene.clock)
    listing, defects = scene.store.list, iter((RuntimeError("a record nobody foresaw"),))

    async def broken(prefix: str) -> Listing:
        for defect in defects:
            raise defect
        return await listing(prefix)

    scene.store.list = broken  # type: ignore[method-assign]
    loop = Loop("state nodes", scene.view.run, OnFailure.RESTART)
    async with supervisor.running(loop), scene.view.changes() as changes:
        await scene.view.wait_first()
        await settle()
        await scene.store.put("nodes/a", b"1")
        assert [change.key for change in await anext(changes)] == ["nodes/a"]
    assert supervisor.failures == {"state nodes": 1}
    assert "a record nobody foresaw" in caplog.text


async def test_what_it_last_saw_stays_and_tells_its_age() -> None:
    scene = Scene()
    await scene.store.put("nodes/a", b"1")
    async with scene.running():
        scene.store.away = True
        scene.clock.advance(31)
        assert scene.view.source.ok
        scene.bell.ring()  # half a minute is over: a list is tried, and fails
        await settle()
        scene.clock.advance(11)
        source = scene.view.source
        assert (source.ok, source.age_s) == (False, 42.0)
        assert source.error
        assert scene.seen() == {"nodes/a": b"1"}
        scene.store.away = False
        scene.bell.ring()
        await settle()
        assert scene.view.source.ok


@pytest.mark.threat("ended-share")
async def test_a_silent_store_is_not_called_current_for_ever() -> None:
    scene = Scene()
    async with scene.running():
        scene.clock.advance(41)
        assert not scene.view.source.ok


async def test_a_list_puts_right_what_the_watch_missed() -> None:
    scene = Scene()
    async with scene.running():
        scene.store.hold_watches()
        await scene.store.put("nodes/a", b"1")
        await settle()
        assert scene.seen() == {}
        assert 30.0 in scene.bell.slept
        scene.bell.ring()
        await settle()
        assert scene.seen() == {"nodes/a": b"1"}


async def test_of_an_unchanged_state_the_keys_are_listed_every_twentieth_time_alone() -> None:
    scene, listed = Scene(), 0
    whole = scene.store.list

    async def counted(prefix: str) -> Listing:
        nonlocal listed
        listed += 1
        return await whole(prefix)

    scene.store.list = counted  # type: ignore[method-assign]
    async with scene.running():
        await settle()
        for _ in range(39):
            scene.bell.ring()
            await settle()
    assert listed == 2


@pytest.mark.parametrize("created", [False, True])
async def test_a_deletion_that_the_watch_missed_is_found(*, created: bool) -> None:
    scene = Scene()
    for key in ("nodes/a", "nodes/b"):
        await scene.store.put(key, b"1")
    async with scene.running():
        await settle()
        scene.store.hold_watches()
        await scene.store.commit([], [Delete("nodes/a")])
        if created:
            await scene.store.put("nodes/c", b"1")
        scene.bell.ring()
        await settle()
        assert set(scene.seen()) == {"nodes/b"} | ({"nodes/c"} if created else set())


async def test_refresh_reads_now_and_a_late_watch_changes_nothing() -> None:
    scene = Scene()
    async with scene.running():
        scene.store.hold_watches()
        await scene.store.put("nodes/a", b"1")
        await scene.store.put("nodes/a", b"2")
        await scene.view.refresh()
        async with scene.view.changes() as changes:
            assert [each.key for each in await anext(changes)] == ["nodes/a"]
            scene.store.let_watches_go()
            await settle()
            assert scene.seen() == {"nodes/a": b"2"}
            await scene.store.put("nodes/b", b"3")
            assert [each.key for each in await anext(changes)] == ["nodes/b"]


async def test_refresh_says_when_it_can_not() -> None:
    scene = Scene()
    scene.store.away = True
    with pytest.raises(Unavailable):
        await scene.view.refresh()


async def test_compaction_is_followed_by_a_list() -> None:
    scene = Scene()
    async with scene.running():
        scene.store.hold_watches()
        await scene.store.put("nodes/a", b"1")
        scene.store.compact()
        scene.store.let_watches_go()
        await settle()
        assert scene.seen() == {"nodes/a": b"1"}


async def test_a_store_restored_from_a_backup_is_followed() -> None:
    scene = Scene()
    await scene.store.put("nodes/a", b"1")
    await scene.store.put("nodes/b", b"1")
    async with scene.running():
        older = InMemoryStateStore(scene.clock)
        await older.put("nodes/a", b"0")
        scene.store.space = older.space
        scene.bell.ring()
        await settle()
        assert scene.seen() == {"nodes/a": b"0"}
        await older.put("nodes/c", b"1")
        await settle()
        assert set(scene.seen()) == {"nodes/a", "nodes/c"}


async def test_a_reader_gets_what_is_there_then_what_changes() -> None:
    scene = Scene()
    await scene.store.put("nodes/a", b"1")
    async with scene.running(), scene.view.changes() as changes:
        (there,) = await anext(changes)
        assert there.entry is not None
        assert there.entry.value == b"1"
        await scene.store.commit([], [Delete("nodes/a"), Put("nodes/b", b"2")])
        batch = await anext(changes)
        assert {(each.key, each.entry is None) for each in batch} == {
            ("nodes/a", True),
            ("nodes/b", False),
        }


async def test_a_slow_reader_gets_the_newest_of_each_key() -> None:
    scene = Scene()
    async with scene.running(), scene.view.changes() as changes:
        for number in range(100):
            await scene.store.put("nodes/a", b"%d" % number)
            await settle()
        (only,) = await anext(changes)
        assert only.entry is not None
        assert only.entry.value == b"99"


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.binary(max_size=2)),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.just(b"")),
        st.tuples(
            st.sampled_from(["hold", "go", "away", "back", "compact", "ring", "settle", "read"]),
            st.just(""),
            st.just(b""),
        ),
    ),
    max_size=30,
)


@given(_STEPS)
def test_whatever_happens_view_and_reader_end_with_the_truth(
    steps: list[tuple[str, str, bytes]],
) -> None:
    asyncio.run(_story(steps))


async def _story(steps: list[tuple[str, str, bytes]]) -> None:
    scene = Scene()
    copy: dict[str, bytes] = {}
    async with scene.running(), scene.view.changes() as changes:
        for act, key, value in steps:
            if act in {"put", "delete"} and not scene.store.away:
                change = Put(f"nodes/{key}", value) if act == "put" else Delete(f"nodes/{key}")
                await scene.store.commit([], [change])
            elif act in {"away", "back"}:
                scene.store.away = act == "away"
            elif act in {"settle", "read"}:
                await settle()
                await _read(changes, copy)
            else:
                doing = {
                    "hold": scene.store.hold_watches,
                    "go": scene.store.let_watches_go,
                    "compact": scene.store.compact,
                    "ring": scene.bell.ring,
                }
                doing.get(act, lambda: None)()
        scene.store.away = False
        scene.store.let_watches_go()
        scene.bell.ring()
        await settle()
        truth = {each.key: each.value for each in (await scene.store.list("nodes/")).entries}
        assert scene.seen() == truth
        await _read(changes, copy)
        assert copy == truth


async def _read(changes: AsyncIterator[tuple[Changed, ...]], copy: dict[str, bytes]) -> None:
    """All that is there; who has nothing more to read would wait."""
    while True:
        reading = asyncio.ensure_future(anext(changes))
        await settle()
        if not reading.done():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            return
        for change in reading.result():
            if change.entry is None:
                copy.pop(change.key, None)
            else:
                copy[change.key] = change.entry.value
