"""Two servers that want the same at the same time, on every agreed state: in memory, file, etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lattice.base.clock import SystemClock
from lattice.base.errors import Conflict
from lattice.base.signatures import SigningKey
from lattice.domain.audit import AuditAct
from lattice.domain.audit_chain import ChainVerifier
from lattice.domain.state import StateStore
from lattice.features.attach.service.recordings import ALONE, RecordingEntry
from lattice.features.attach.service.records import OPEN, SessionRecords
from lattice.features.attach.sessions import AttachSession
from lattice.features.audit.service.head import BLOCKS
from tests.contract.places import EtcdPlace, FilePlace
from tests.fakes.audit import CLUSTER, attach, audit_replica
from tests.fakes.in_memory_state import InMemoryStateStore

pytestmark = pytest.mark.timeout(180)

CLOCK = SystemClock()
BEGUN = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)


@dataclass
class Servers:
    """The connections of two servers to one state."""

    one: StateStore
    two: StateStore

    def of(self, number: int) -> StateStore:
        return (self.one, self.two)[number % 2]


@pytest.fixture(params=["memory", "file", pytest.param("etcd", marks=pytest.mark.lab)])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    if request.param == "memory":
        store = InMemoryStateStore(CLOCK)
        yield Servers(store, store.another())
    elif request.param == "file":
        place = FilePlace(tmp_path / "state")
        await place.open()
        try:
            yield Servers(place.store, place.store)
        finally:
            await place.close()
    else:
        doorway = request.getfixturevalue("etcd_doorway")
        etcd = EtcdPlace(request.getfixturevalue("etcd_lab"), doorway)
        await etcd.open()
        try:
            yield Servers(etcd.store, await etcd.another())
        finally:
            await etcd.close()


def _terminal(number: int) -> tuple[AttachSession, RecordingEntry]:
    session = f"{number:032x}"
    made = AttachSession(
        id=session,
        user="alice",
        subject="alice-1",
        allocation="7@1",
        attempt=1,
        node="n1",
        command=(),
        terminal=True,
        started=BEGUN,
    )
    entry = RecordingEntry(
        cluster="lab",
        allocation="7@1",
        session=session,
        user="alice",
        subject="alice-1",
        role="User",
        tenant="physics",
        account="research",
        node="n1",
        begun=BEGUN,
        rows=24,
        columns=80,
        terminal="xterm",
        command="",
    )
    return made, entry


@pytest.mark.threat(3)
async def test_one_of_a_hundred_recorded_terminals_begins(servers: Servers) -> None:
    records = [SessionRecords(servers.of(each), CLOCK, f"r{each}") for each in range(2)]

    async def begin(number: int) -> str:
        try:
            await records[number % 2].begin(*_terminal(number))
        except Conflict as refused:
            return refused.message
        return ""

    refusals = [each for each in await asyncio.gather(*map(begin, range(100))) if each]
    assert len(refusals) == 99
    assert {each.partition(":")[0] for each in refusals} == {
        "alice has a terminal in this allocation, on n1 since 2026-11-19 12"
    }
    for prefix in (ALONE, OPEN):
        assert len((await servers.two.list(prefix)).entries) == 1


async def test_two_logs_that_race_are_one_chain_with_every_event_once(servers: Servers) -> None:
    key = SigningKey.generate()
    replicas = [audit_replica(servers.of(each), CLOCK, key) for each in range(2)]
    writers = [asyncio.create_task(each.log.run()) for each in replicas]
    try:
        events = [attach(f"e{number}") for number in range(200)]
        # Each event twice, by both servers, as a client that tries again.
        found = await asyncio.gather(
            *(replicas[n % 2].log.require(each) for n, each in enumerate(events)),
            *(replicas[(n + 1) % 2].log.require(each) for n, each in enumerate(events)),
        )
    finally:
        for each in writers:
            each.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    assert found[:200] == found[200:]
    verifier = ChainVerifier.from_beginning(CLUSTER)
    for entry in (await servers.one.list(BLOCKS)).entries:
        verifier.feed_all(entry.value)
    verifier.finish()
    reader = audit_replica(servers.one, CLOCK, key).chain
    await reader.refresh()
    recorded = [each for batch in reader.batches for each in batch.entries]
    ids = sorted(each.event for each in recorded if each.act is not AuditAct.KEY_CHANGE)
    assert ids == sorted(each.event for each in events)
