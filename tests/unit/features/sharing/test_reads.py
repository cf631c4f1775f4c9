"""Reads written down: who, how often, by which right; bounded, and never lost to a race."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import Unavailable
from lattice.domain.sharing import ReadKind, ReadRecord, Standing
from lattice.features.sharing.model import MOST_HOURS, noted
from lattice.features.sharing.service import reads
from lattice.features.sharing.service.reads import READS, RETENTION, WrittenReads
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock

JOB = allocation(7, "alice", "research")
BEGIN = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def at(seconds: float, standing: Standing = Standing.SHARED) -> ReadRecord:
    moment = BEGIN + timedelta(seconds=seconds)
    return ReadRecord(allocation="7@1", reader="bob", standing=standing, first=moment, last=moment)


def counts(records: tuple[ReadRecord, ...]) -> tuple[int, int, int]:
    return (
        sum(each.reads for each in records),
        sum(each.follows for each in records),
        sum(each.downloads for each in records),
    )


def test_an_hour_is_one_record() -> None:
    records: tuple[ReadRecord, ...] = ()
    for second, way in (
        (0, ReadKind.READ),
        (60, ReadKind.FOLLOW),
        (3599, ReadKind.READ),
        (3600, ReadKind.DOWNLOAD),
    ):
        records = noted(records, at(second), way, goes_on=False)
    assert [each.times for each in records] == [3, 1]
    assert records[0].last == at(3599).last
    assert counts(records) == (2, 1, 1)


@pytest.mark.spec("AUTH-7")
def test_another_right_is_another_record() -> None:
    records = noted((), at(0), ReadKind.READ, goes_on=False)
    records = noted(records, at(1, Standing.TENANT_ADMIN), ReadKind.READ, goes_on=False)
    assert [each.standing for each in records] == [Standing.SHARED, Standing.TENANT_ADMIN]


_steps = st.lists(
    st.tuples(st.integers(0, 7200), st.sampled_from(ReadKind), st.booleans()),
    min_size=1,
    max_size=120,
)


@pytest.mark.spec("AUTH-7")
@given(_steps)
def test_nothing_is_forgotten_however_long_it_goes(steps: list[tuple[int, ReadKind, bool]]) -> None:
    records: tuple[ReadRecord, ...] = ()
    second, expected = 0, dict.fromkeys(ReadKind, 0)
    for pause_s, way, goes_on in steps:
        second += pause_s
        records = noted(records, at(second), way, goes_on=goes_on)
        expected[way] += not goes_on and way is not ReadKind.LIST
    assert counts(records) == (
        expected[ReadKind.READ] + expected[ReadKind.MEASURE],
        expected[ReadKind.FOLLOW] + expected[ReadKind.OBSERVE],
        expected[ReadKind.DOWNLOAD],
    )  # fmt: skip
    assert len(records) <= MOST_HOURS
    assert (records[0].first, records[-1].last) == (at(steps[0][0]).first, at(second).last)
    assert all(one.last <= other.first for one, other in itertools.pairwise(records))


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.notes = WrittenReads(self.state, self.clock)

    async def read(self, reader: str = "bob", way: ReadKind = ReadKind.READ, job: int = 7) -> None:
        read = JOB if job == 7 else allocation(job, "alice", "research")
        await self.notes.note(reader, Standing.SHARED, read, way)

    async def times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for each in await self.notes.of([JOB]):
            found[each.reader] = found.get(each.reader, 0) + each.times
        return found


@pytest.fixture
def site() -> Site:
    return Site()


async def test_page_after_page_is_one_read_and_one_write(site: Site) -> None:
    for _ in range(50):
        await site.read()
    assert await site.times() == {"bob": 1}
    assert site.state.space.revision == 2
    site.clock.advance(11)
    await site.read()
    await site.read(way=ReadKind.DOWNLOAD)
    assert await site.times() == {"bob": 3}


@pytest.mark.spec("AUTH-7")
async def test_two_servers_lose_no_read_of_one_reader(site: Site) -> None:
    other = WrittenReads(site.state.another(), site.clock)
    for _ in range(5):
        await asyncio.gather(site.read(), other.note("bob", Standing.SHARED, JOB, ReadKind.READ))
        site.clock.advance(11)
    assert await site.times() == {"bob": 10}


@pytest.mark.spec("AUTH-7")
async def test_readers_with_odd_names_are_told_apart(site: Site) -> None:
    names = ["a/b", "a%2Fb", "ü ber", "x" * 400, "x" * 401, "client:7f3"]
    for name in names:
        await site.read(name)
    assert await site.times() == dict.fromkeys(names, 1)


@pytest.mark.spec("AUTH-7")
async def test_reads_of_another_job_are_not_shown(site: Site) -> None:
    await site.read(job=70)
    assert await site.times() == {}


async def test_after_its_time_a_record_is_gone_and_its_key_is_removed(site: Site) -> None:
    await site.read()
    site.clock.advance(RETENTION.total_seconds() + 1)
    assert await site.times() == {}
    await site.read("carol")
    assert [key for key in site.state.space.entries if key.endswith("/bob")] == []


@pytest.mark.threat("read-flood")
async def test_the_oldest_go_when_there_are_too_many(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "MOST_KEYS", 20)
    for job in range(100, 160):
        await site.read(job=job)
        site.clock.advance(1)
    kept = sorted(int(key.removeprefix(READS).split("@")[0]) for key in site.state.space.entries)
    assert len(kept) <= 21
    assert kept == list(range(160 - len(kept), 160)), "the newest stay"


class _Log:
    def __init__(self) -> None:
        self.acts: list[tuple[str, str, str, str]] = []

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.acts.append((act, target, sub, detail))


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("read-flood")
async def test_the_log_keeps_the_reads_that_were_pushed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "MOST_KEYS", 20)
    clock, log = ManualClock(), _Log()
    state = InMemoryStateStore(clock)
    written = WrittenReads(state, clock, log)
    for job in range(100, 160):
        job_read = allocation(job, "alice", "research")
        await written.note("root", Standing.SYSTEM_ADMIN, job_read, ReadKind.READ)
        clock.advance(1)
    assert len(state.space.entries) < 60
    assert [target.split("@")[0] for _, target, _, _ in log.acts] == [
        str(job) for job in range(100, 160)
    ]
    assert {(act, sub, detail) for act, _, sub, detail in log.acts} == {
        ("read output", "root", "system admin")
    }


@pytest.mark.spec("AUTH-7")
async def test_without_the_state_it_says_why(site: Site) -> None:
    site.state.away = True
    with pytest.raises(Unavailable, match="can't be written down now"):
        await site.read()


@pytest.mark.spec("AUTH-7")
async def test_one_whose_beginning_is_unknown_is_not_read_by_others(site: Site) -> None:
    unsure = allocation(7, "alice", "research", first_submitted=None)
    with pytest.raises(Unavailable, match="first submitted"):
        await site.notes.note("bob", Standing.SHARED, unsure, ReadKind.READ)


async def test_a_key_that_can_not_be_read_hurts_nobody(site: Site) -> None:
    await site.state.put(f"{READS}{JOB.ref}/mallory", b"\xff{")
    await site.state.put(f"{READS}{JOB.ref}/eve", json.dumps({"hours": [[1]]}).encode())
    await site.read()
    assert await site.times() == {"bob": 1}


async def test_a_full_record_stays_small(site: Site) -> None:
    for _ in range(60):
        await site.read("a-rather-long-user-name", ReadKind.FOLLOW)
        site.clock.advance(3600)
    (entry,) = site.state.space.entries.values()
    assert len(entry.value) < 1500, "20 000 of them stay below 30 MB"
