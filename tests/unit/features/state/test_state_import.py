"""Records into an empty state: all of them or no cluster; nothing is overwritten."""

from __future__ import annotations

import pytest

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.backup import StateRecord
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord
from lattice.domain.state import MOST_CHANGES, Change, Expect
from lattice.features.state.service.state_import import import_state
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.unit.features.state.state_site import CLUSTER

RECORDS = (
    StateRecord(CLUSTER_KEY, CLUSTER.encoded()),
    *(StateRecord(f"records/{number:06}", b"%d" % number) for number in range(3 * MOST_CHANGES)),
    *(StateRecord(f"wide/{number:06}", bytes(60_000)) for number in range(40)),
)
NEXT = ClusterRecord(CLUSTER.id, CLUSTER.created, epoch=1)


@pytest.fixture
def state() -> InMemoryStateStore:
    return InMemoryStateStore(ManualClock())


async def content(state: InMemoryStateStore) -> dict[str, bytes]:
    return {each.key: each.value for each in (await state.list("")).entries}


@pytest.mark.spec("OPS-3")
async def test_every_record_and_the_new_epoch_are_written(state: InMemoryStateStore) -> None:
    assert await import_state(state, RECORDS, NEXT) == len(RECORDS)
    assert await content(state) == dict(RECORDS) | {CLUSTER_KEY: NEXT.encoded()}


class StoppingState(InMemoryStateStore):
    """Fails at a commit, before or after it is carried out."""

    def __init__(self, stop_at: int, *, done: bool) -> None:
        super().__init__(ManualClock())
        self._left = stop_at
        self._done = done

    async def commit(self, expect: object, changes: object) -> int | None:
        self._left -= 1
        if self._left == 0 and not self._done:
            raise Unavailable("cut off")
        revision = await super().commit(expect, changes)  # type: ignore[arg-type]
        if self._left == 0:
            raise Unavailable("cut off")
        return revision


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("stop_at", [1, 2, 4, 6])
async def test_an_interrupted_import_is_completed(stop_at: int, *, done: bool) -> None:
    state = StoppingState(stop_at, done=done)
    with pytest.raises(Unavailable):
        await import_state(state, RECORDS, NEXT)
    assert CLUSTER_KEY not in await content(state)
    await import_state(state, RECORDS, NEXT)
    assert await content(state) == dict(RECORDS) | {CLUSTER_KEY: NEXT.encoded()}


@pytest.mark.threat("backup-store")
async def test_a_state_that_holds_a_cluster_is_not_touched(state: InMemoryStateStore) -> None:
    other = ClusterRecord("beef", CLUSTER.created)
    await state.put(CLUSTER_KEY, other.encoded())
    before = await state.list("")
    with pytest.raises(ConfigurationError, match="holds a cluster already: beef"):
        await import_state(state, RECORDS, NEXT)
    assert await state.list("") == before


async def test_a_state_with_other_keys_or_a_running_server_is_not_touched(
    state: InMemoryStateStore,
) -> None:
    await state.put("records/000001", b"another value")
    with pytest.raises(ConfigurationError, match="not empty: it has records/000001"):
        await import_state(state, RECORDS, NEXT)
    lease = await state.lease(60)
    await state.put("presence/r1", b"here", lease.id)
    with pytest.raises(ConfigurationError, match="A server uses this state now"):
        await import_state(state, RECORDS, NEXT)
    assert set(await content(state)) == {"records/000001", "presence/r1"}


async def test_a_writer_at_the_same_time_is_noticed(state: InMemoryStateStore) -> None:
    class Disturbed(InMemoryStateStore):
        async def commit(self, expect: list[Expect], changes: list[Change]) -> int | None:  # type: ignore[override]
            await self.put(changes[0].key, b"by somebody else")
            return await super().commit(expect, changes)

    with pytest.raises(ConfigurationError, match="Another process writes"):
        await import_state(Disturbed(ManualClock()), RECORDS, NEXT)
