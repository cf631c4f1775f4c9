"""Straight to the metric store: what servers would have written, or over the servers after all."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import StoredBatch, batch_of
from lattice.features.telemetry.convert.job_settings import NodeJobSettings, StampedRun
from lattice.features.telemetry.convert.stamps import stamps_of
from lattice.features.telemetry.node.buffer import Layouts, SampleRow
from lattice.features.telemetry.node.direct_write import PATIENCE_S, DirectIntake, WriteRoute
from lattice.features.telemetry.node.job_settings import KnownStamps
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.sample_guard import SampleGuard
from lattice.features.telemetry.service.sample_writer import SampleWriting
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.supervised import SupervisedLoops

CLOCK = ManualClock()
NOW = CLOCK.now().timestamp()
STARTED = NOW - 600
JOB = allocation(
    7,
    "alice",
    "research",
    submitted=datetime.fromtimestamp(STARTED, UTC),
    started=datetime.fromtimestamp(STARTED, UTC),
)
WHOSE = stamps_of(JobAttempt(JOB, attempts_of(JOB)[-1]))


class Servers:
    """Hear of losses."""

    def __init__(self) -> None:
        self.heard: list[OutgoingRows] = []
        self.fault: LatticeError | None = None

    async def store(self, outgoing: OutgoingRows) -> StoredBatch:
        if self.fault is not None:
            raise self.fault
        self.heard.append(outgoing)
        return StoredBatch(0)


def known(*job_ids: int) -> KnownStamps:
    found = KnownStamps()
    runs = {each: StampedRun(STARTED, WHOSE) for each in job_ids}
    found.note(NodeJobSettings(stamping=True, runs=runs, as_of=NOW))
    return found


def rows(job_id: int = 7, at: float = NOW - 30) -> list[SampleRow]:
    identity = JobIdentity("b", job_id, 1, STARTED + 0.3)
    samples = (
        Sample("cpu_seconds_total", 12.5, at + 0.004),
        Sample("gpu_utilization_percent", 40.0, at + 0.2, labels=labelled(gpu_uuid="GPU-a")),
    )
    return Layouts().rows_of(JobSnapshot(identity, at, 30.0, samples), samples)


def batch(job_id: int = 7, lost: int = 0) -> OutgoingRows:
    both = rows(job_id, NOW - 60) + rows(job_id, NOW - 30)
    return OutgoingRows(both, lambda _: STARTED + 0.3, lost)


def intake(store: InMemoryMetricStore, servers: Servers | None = None, *told: int) -> DirectIntake:
    return DirectIntake("n1", known(*told or (7,)), store, servers or Servers())


@pytest.mark.spec("TOP-2")
async def test_a_node_writes_what_a_server_would_have_written() -> None:
    straight, over = InMemoryMetricStore(), InMemoryMetricStore()
    assert await intake(straight).store(batch()) == StoredBatch(4)
    scheduler = InMemoryScheduler(CLOCK)
    scheduler.accounts, scheduler.allocations = ACCOUNTS, [JOB]
    writing = SampleWriting(over, CLOCK, linger_s=0.0)
    async with writing.running(SupervisedLoops()):
        guard = SampleGuard(AttemptFinder(scheduler, CLOCK).of, CLOCK, lambda _: False)
        server = SampleIntake(guard, writing, NoJournal())
        (sent,) = batch().batches()
        await server.store("n1", batch_of(sent))
    assert straight.writes == over.writes
    assert {each.labels["user"] for write in straight.writes for each in write} == {"alice"}


class NoJournal:
    def refused(self, rpc: str, who: str, reason: str) -> None:
        raise AssertionError(rpc, who, reason)


async def test_a_store_that_is_away_is_tried_again_and_one_that_refuses_is_not() -> None:
    store = InMemoryMetricStore()
    store.away = True
    with pytest.raises(Unavailable, match="remote_write"):
        await intake(store).store(batch())
    store.away, store.refuses = False, "lattice_cpu_seconds_total"
    told = await intake(store).store(batch())
    assert (told.stored, told.refused) == (0, 4)
    assert "not liked" in told.reason


@pytest.mark.spec("TOP-2")
async def test_nothing_is_written_without_a_name() -> None:
    store = InMemoryMetricStore()
    with pytest.raises(Unavailable, match="job 8"):
        await intake(store).store(batch(8))
    assert store.writes == []


async def test_servers_hear_of_losses_although_they_get_no_samples() -> None:
    servers = Servers()
    straight = intake(InMemoryMetricStore(), servers)
    await straight.store(batch())
    assert servers.heard == [], "nothing was lost"
    servers.fault = Unavailable("away")
    assert await straight.store(batch(lost=5)) == StoredBatch(4)
    servers.fault = None
    await straight.store(batch(lost=5))
    await straight.store(batch(lost=5))
    assert [(each.rows, each.lost_total) for each in servers.heard] == [((), 5)]


def ways(stamps: KnownStamps, now: float = NOW) -> WriteRoute:
    return WriteRoute(stamps, lambda identity: identity.started, lambda: now)


@pytest.mark.spec("TOP-2")
def test_each_row_goes_one_way_or_waits() -> None:
    (mine,), (other,) = rows(7), rows(8)
    now = NOW - 30 + PATIENCE_S
    early, late = ways(known(7), now - 0.1), ways(known(7), now)
    assert early.straight(mine)
    assert not early.over_servers(mine)
    assert not late.over_servers(mine), "nor later: it is sent once"
    assert not early.straight(other)
    assert not early.over_servers(other), "it may yet be told whose it is"
    assert late.over_servers(other)


@pytest.mark.spec("TOP-2")
@pytest.mark.threat("metric-writer")
def test_where_servers_tell_no_names_everything_goes_over_them_at_once() -> None:
    (mine,) = rows(7)
    quiet = KnownStamps()
    for told in (None, NodeJobSettings(as_of=NOW)):
        if told is not None:
            quiet.note(told)
        assert ways(quiet).over_servers(mine)
        assert not ways(quiet).straight(mine)
