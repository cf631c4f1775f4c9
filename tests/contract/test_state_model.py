"""Any history of calls, on every store: the same answers as a dictionary with a counter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.doorway import Doorway
from lab.laboratory import Lab
from lattice.domain.state import Change, Delete, Expect, LeaseGone, Put, StateStore
from tests.contract.places import EtcdPlace, FilePlace, MemoryPlace
from tests.examples import examples

KEYS = st.sampled_from(["a", "a/b", "a/c", "ab", "b"])


@dataclass(frozen=True)
class Commit:
    """`fences`: for some keys whether the right revision is expected."""

    fences: dict[str, bool]
    changes: dict[str, bytes | None]
    lease: int


@dataclass(frozen=True)
class Release:
    lease: int


STEPS = st.lists(
    st.one_of(
        st.builds(
            Commit,
            st.dictionaries(KEYS, st.sampled_from([True, True, True, False]), max_size=2),
            st.dictionaries(KEYS, st.none() | st.binary(max_size=3), min_size=1, max_size=4),
            st.integers(0, 2),
        ),
        st.builds(Release, st.integers(1, 2)),
    ),
    max_size=25,
)


@dataclass
class Model:
    """Revisions here are the store's own; what the model knows is when they must change."""

    entries: dict[str, tuple[bytes, int, int, int]] = field(default_factory=dict)
    log: list[tuple[int, dict[str, bytes | None]]] = field(default_factory=list)

    def apply(self, changes: list[Change], revision: int) -> None:
        seen: dict[str, bytes | None] = {}
        for change in changes:
            before = self.entries.pop(change.key, None)
            if isinstance(change, Put):
                created = before[2] if before else revision
                self.entries[change.key] = (change.value, revision, created, change.lease)
                seen[change.key] = change.value
            elif before:
                seen[change.key] = None
        if seen:
            self.log.append((revision, seen))


async def story(store: StateStore, steps: list[Commit | Release]) -> None:
    model = Model()
    start = (await store.list("")).revision
    leases = [await store.lease(60) for _ in range(2)]
    for step in steps:
        if isinstance(step, Release):
            lease = leases[step.lease - 1]
            under = [key for key, entry in model.entries.items() if entry[3] == lease.id]
            await lease.release()
            model.apply([Delete(key) for key in under], (await store.list("")).revision)
        else:
            await _commit(store, model, step, leases[step.lease - 1] if step.lease else None)
        listing = await store.list("")
        told = {e.key: (e.value, e.revision, e.created, e.lease) for e in listing.entries}
        assert told == dict(sorted(model.entries.items()))
        assert list(told) == sorted(told)
    await _watched(store, start, model)


async def _commit(store: StateStore, model: Model, step: Commit, lease: object) -> None:
    number = getattr(lease, "id", 0)
    changes: list[Change] = [
        Delete(key) if value is None else Put(key, value, number)
        for key, value in step.changes.items()
    ]
    revisions = {key: entry[1] for key, entry in model.entries.items()}
    expect = [
        Expect(key, revisions.get(key, 0) + (0 if right else 1))
        for key, right in step.fences.items()
    ]
    gone = getattr(lease, "lost", False) and any(isinstance(each, Put) for each in changes)
    before = (await store.list("")).revision
    if not all(step.fences.values()):
        assert await store.commit(expect, changes) is None
    elif gone:
        with pytest.raises(LeaseGone):
            await store.commit(expect, changes)
    else:
        revision = await store.commit(expect, changes)
        assert revision is not None
        moved = any(isinstance(each, Put) or each.key in revisions for each in changes)
        assert revision > before if moved else revision >= before
        model.apply(changes, revision)


async def _watched(store: StateStore, start: int, model: Model) -> None:
    """Two watches replay the whole of it, and one of a prefix its part."""
    for prefix in ("", "a/"):
        wanted = [
            (revision, {key: value for key, value in seen.items() if key.startswith(prefix)})
            for revision, seen in model.log
        ]
        wanted = [each for each in wanted if each[1]]
        end = await store.put(f"{prefix}z", b"end")
        async with store.watch(prefix, start) as batches, asyncio.timeout(60):
            told = []
            async for batch in batches:
                assert len({each.revision for each in batch}) == 1
                if batch[0].revision >= end:
                    break
                values = {each.key: each.entry.value if each.entry else None for each in batch}
                told.append((batch[0].revision, values))
        assert [
            each for each in told if f"{prefix}z" not in each[1] and "z" not in each[1]
        ] == wanted


def _play(
    make: Callable[[], Awaitable[MemoryPlace | FilePlace | EtcdPlace]],
    steps: list[Commit | Release],
) -> None:
    async def play() -> None:
        place = await make()
        try:
            await story(place.store, steps)
        finally:
            if not isinstance(place, MemoryPlace):
                await place.close()

    asyncio.run(play())


@given(steps=STEPS)
def test_in_memory(steps: list[Commit | Release]) -> None:
    async def make() -> MemoryPlace:
        return MemoryPlace()

    _play(make, steps)


@pytest.mark.spec("TRY-1")
@given(steps=STEPS)
def test_in_a_file(tmp_path_factory: pytest.TempPathFactory, steps: list[Commit | Release]) -> None:
    async def make() -> FilePlace:
        place = FilePlace(Path(tmp_path_factory.mktemp("state")))
        await place.open()
        return place

    _play(make, steps)


@pytest.mark.spec("OPS-1")
@pytest.mark.lab
@given(steps=STEPS)
@settings(max_examples=examples(0.25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_on_etcd(etcd_lab: Lab, etcd_doorway: Doorway, steps: list[Commit | Release]) -> None:
    async def make() -> EtcdPlace:
        place = EtcdPlace(etcd_lab, etcd_doorway)
        await place.open()
        return place

    _play(make, steps)
