"""What is removed, when, and what is said of it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.objects.folder import FolderObjectStore
from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.allocation import State
from lattice.domain.attempts import attempts_of
from lattice.features.logs.model import LogQuery
from lattice.features.logs.section import LogsSection, TenantLogs
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.retention import (
    AGAIN_S,
    REMOVED,
    SWEEP_EVERY_S,
    Removals,
    Retention,
    RetentionRules,
)
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.unit.features.logs.test_reading import ALICE, Site, numbered

DAY_S = 86_400.0


class Kept(Site):
    """Two attempts of a finished job of tenant physics; `days` of keeping."""

    def __init__(self, days: int = 30, tenants: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.retention = self.replica(days, tenants)

    def replica(self, days: int = 30, tenants: Mapping[str, int] | None = None) -> Retention:
        rules = RetentionRules(days, tenants or {})
        return Retention(self.objects, self.scheduler, self.clock, rules)

    @property
    def keys(self) -> list[str]:
        return [key.rpartition("/")[2] for key in sorted(self.objects._objects)]


@pytest.mark.spec("LOG-9")
async def test_kept_to_the_last_day_and_then_removed() -> None:
    site = Kept()
    await site.put("n1", numbered(70))
    site.clock.advance(30 * DAY_S - 1)
    await site.retention.sweep()
    assert len(site.keys) == 3
    assert len(await site.texts()) == 70
    site.clock.advance(2)
    await site.retention.sweep()
    assert site.keys == ["removed.json"]
    counts = site.retention.counts
    assert (counts.attempts_removed_total, counts.objects_removed_total) == (1, 3)
    assert counts.bytes_removed_total > 0


@pytest.mark.spec("LOG-9")
async def test_who_asks_is_told_that_it_was_removed_and_why() -> None:
    site = Kept()
    await site.put("n1", numbered(3))
    site.clock.advance(31 * DAY_S)
    await site.retention.sweep()
    for asked in (
        site.reading.page(ALICE, "7", LogQuery()),
        site.reading.stream(ALICE, "7", LogQuery()),
        site.reading.streams(ALICE, "7", LogQuery()),
        site.reading.raw(ALICE, "7", LogQuery(), "batch"),
    ):
        with pytest.raises(DataUnavailable) as said:
            await asked
        assert "removed after 30 days by the retention of tenant physics" in said.value.message


@pytest.mark.spec("LOG-9")
async def test_what_comes_after_the_removal_is_shown() -> None:
    """A node that was away for a month brings its last chunk."""
    site = Kept()
    await site.put("n1", numbered(3))
    site.clock.advance(31 * DAY_S)
    await site.retention.sweep()
    await site.put("n2", numbered(3, "late"))
    await site.retention.sweep()
    assert await site.texts() == ["late 0", "late 1", "late 2"]


@pytest.mark.spec("LOG-9")
@pytest.mark.parametrize(
    "state", [State.RUNNING, State.SUSPENDED, State.PENDING, State.REQUEUED, State.UNKNOWN]
)
@pytest.mark.parametrize("name", ["7", "7_3", "7+0", "7_[4-9]"])
async def test_nothing_of_an_unfinished_job_is_removed(state: State, name: str) -> None:
    site = Kept()
    await site.put("n1", numbered(3))
    (job,) = site.scheduler.allocations
    site.scheduler.allocations[:] = [replace(job, id=name, state=state, ended=None)]
    site.clock.advance(400 * DAY_S)
    await site.retention.sweep()
    assert len(site.keys) == 1
    site.scheduler.allocations.clear()
    await site.retention.sweep()
    assert site.keys == ["removed.json"]


@pytest.mark.spec("LOG-9")
async def test_nothing_is_removed_while_slurm_is_silent() -> None:
    site = Kept()
    await site.put("n1", numbered(3))
    site.scheduler.down = True
    site.clock.advance(31 * DAY_S)
    with pytest.raises(Unavailable):
        await site.retention.sweep()
    assert len(site.keys) == 1


@pytest.mark.spec("LOG-9")
async def test_a_sweep_that_was_cut_off_is_taken_up_by_the_next() -> None:
    site = Kept()
    await site.put("n1", numbered(200))
    site.clock.advance(31 * DAY_S)
    delete = site.objects.delete
    left = 3

    async def failing(key: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Unavailable("The object store did not answer.")
        await delete(key)

    site.objects.delete = failing  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await site.retention.sweep()
    assert "removed.json" in site.keys, "said before anything went"
    assert len(site.keys) > 1
    site.objects.delete = delete  # type: ignore[method-assign]
    await site.retention.sweep()
    assert site.keys == ["removed.json"]


@pytest.mark.spec("LOG-9")
async def test_two_sweeps_at_once_do_no_harm() -> None:
    site = Kept()
    await site.put("n1", numbered(200))
    site.clock.advance(31 * DAY_S)
    await asyncio.gather(site.retention.sweep(), site.replica().sweep())
    assert site.keys == ["removed.json"]


async def test_one_replica_has_the_turn() -> None:
    site = Kept()
    state = InMemoryStateStore(site.clock)
    first, second = site.replica(), site.replica()
    turns = [await first.take_turn(state), await second.take_turn(state.another())]
    assert turns == [True, False]
    site.clock.advance(SWEEP_EVERY_S)
    turns = list(await asyncio.gather(*(each.take_turn(state) for each in (first, second))))
    assert sorted(turns) == [False, True]


@pytest.mark.spec("LOG-9")
async def test_a_server_that_does_not_know_slurms_jobs_takes_no_turn() -> None:
    site = Kept()
    state = InMemoryStateStore(site.clock)
    site.scheduler.down = True
    site.clock.advance(DAY_S)
    with pytest.raises(Unavailable, match="Slurm"):
        await site.retention.sweep_in_turn(state)
    site.scheduler.down = False
    await site.retention.sweep_in_turn(state)
    assert site.retention.counts.sweeps_total == 1


@pytest.mark.spec("LOG-9")
async def test_a_sweep_that_failed_is_due_again_within_an_hour() -> None:
    site = Kept()
    state = InMemoryStateStore(site.clock)
    site.objects.away = True
    with pytest.raises(Unavailable):
        await site.retention.sweep_in_turn(state)
    site.objects.away = False
    other = site.replica()
    await other.sweep_in_turn(state)
    assert other.counts.sweeps_total == 0
    site.clock.advance(AGAIN_S)
    await other.sweep_in_turn(state)
    assert other.counts.sweeps_total == 1
    await site.retention.sweep_in_turn(state)
    assert site.retention.counts.sweeps_total == 1


@pytest.mark.spec("LOG-9")
async def test_other_objects_of_a_tenant_are_left_alone() -> None:
    site = Kept()
    await site.objects.put("physics/research/7/recordings/1/x", b"a session")
    await site.objects.put("physics/note", b"of the site's own")
    site.clock.advance(400 * DAY_S)
    await site.retention.sweep()
    assert len(site.keys) == 2


@pytest.mark.spec("LOG-9")
async def test_in_a_folder_too(tmp_path: Path) -> None:
    site = Kept()
    objects = FolderObjectStore(tmp_path)
    site.objects = objects  # type: ignore[assignment]
    await site.put("n1", numbered(70))
    retention = Retention(objects, site.scheduler, site.clock, RetentionRules(1))
    site.clock.advance((2 * DAY_S) + 10 * 365 * DAY_S)
    await retention.sweep()
    assert [each.name for each in tmp_path.rglob("*.json")] == ["removed.json"]
    assert not list(tmp_path.rglob("*.zst"))


@pytest.mark.spec("LOG-9")
@given(
    days=st.integers(0, 60),
    own=st.none() | st.integers(0, 60),
    age=st.integers(0, 70),
)
async def test_the_law_of_days(days: int, own: int | None, age: int) -> None:
    """A tenant's own number counts, else that of all; 0 is for ever."""
    site = Kept(days, {} if own is None else {"physics": own, "biology": 1})
    await site.put("n1", numbered(1))
    site.clock.advance(age * DAY_S + 60)
    await site.retention.sweep()
    kept_days = days if own is None else own
    assert (site.keys == ["removed.json"]) == (0 < kept_days <= age)


@pytest.mark.spec("LOG-9")
def test_the_configuration_says_it_by_tenant() -> None:
    section = LogsSection(
        retention_days=90,
        tenants={
            "physics": TenantLogs(retention_days=0),
            "biology": TenantLogs(retention_days=7),
            "maths": TenantLogs(),
        },
    )
    found = [section.rules.of(each) for each in ("physics", "biology", "maths", "else")]
    assert found == [0, 7, 90, 90]
    assert not LogsSection().rules.is_set


@pytest.mark.spec("LOG-9")
async def test_requeued_attempts_go_by_their_own_age() -> None:
    """The newest object of an attempt counts, not that of the job."""
    site = Kept()
    await site.put("n1", numbered(1))
    (key,) = site.objects._objects
    site.clock.advance(20 * DAY_S)
    await site.objects.put(key.replace("-1/stdout", "-2/stdout"), b"younger")
    site.clock.advance(timedelta(days=11).total_seconds())
    await site.retention.sweep()
    assert site.keys == ["removed.json", "chunk_000001.log.zst"]


async def test_a_note_of_removal_that_nests_too_deeply_is_none() -> None:
    site = Site()
    (job,) = site.scheduler.allocations
    name = AttemptName(job, attempts_of(job)[0])
    content = b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"
    await site.objects.put(f"{name.prefix}/{REMOVED}", content)
    assert await Removals(site.objects).of(name) is None
