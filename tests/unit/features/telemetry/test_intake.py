"""What nodes may bring to the metric store, and what they may not."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, State
from lattice.domain.metric import CATALOGUE, Labels, Provenance, labelled
from lattice.features.telemetry.convert.batches import (
    JobColumns,
    SeriesColumn,
    StoredBatch,
    batch_message,
    batch_of,
)
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.sample_guard import SampleGuard
from lattice.features.telemetry.service.sample_writer import SampleWriting
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.supervised import SupervisedLoops

STAMPED = ("alloc", "attempt", "node", "project", "tenant", "user", "vcluster", "source")
"""The labels that are added to every series; the catalogue uses none of these names."""
CPU = "cpu_seconds_total"
PROBE = Provenance.HOST_LOCAL_PROBE


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.now = self.clock.now().timestamp()
        self.started = self.now - 3600
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.scheduler.allocations = [self.job(7), self.job(8, "bob", "genomics", nodes="n2")]
        self.store = InMemoryMetricStore()
        self.writing = SampleWriting(self.store, self.clock, linger_s=0.0)
        self.told: list[tuple[str, str, str]] = []
        self.sensitive: set[str] = set()
        guard = SampleGuard(
            AttemptFinder(self.scheduler, self.clock).of,
            self.clock,
            lambda each: each.id in self.sensitive,
        )
        self.intake = SampleIntake(guard, self.writing, self)

    def job(
        self, job_id: int, user: str = "alice", account: str = "research", **more: object
    ) -> Allocation:
        began = datetime.fromtimestamp(self.started, UTC)
        return allocation(job_id, user, account, submitted=began, **more)

    def refused(self, rpc: str, who: str, reason: str) -> None:
        self.told.append((rpc, who, reason))

    def columns(
        self,
        *values: float,
        metric: str = CPU,
        labels: Labels = (),
        source: Provenance = PROBE,
        late_ms: tuple[int, ...] = (),
    ) -> SeriesColumn:
        return SeriesColumn(metric, labels, source, values, late_ms)

    async def bring(
        self,
        *series: SeriesColumn,
        node: str = "n1",
        job_id: int = 7,
        at: tuple[float, ...] = (-30.0, 0.0),
        lost: int = 0,
        started: float | None = None,
    ) -> StoredBatch:
        times_ms = tuple(round((self.now + each) * 1000) for each in at)
        begun = self.started + 0.3 if started is None else started
        batch = batch_message([JobColumns(job_id, begun, times_ms, series)], lost)
        return await self.intake.store(node, batch_of(batch))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with site.writing.running(SupervisedLoops()):
        yield site


@pytest.mark.spec("SRC-1", "TOP-2")
@pytest.mark.threat("metric-writer")
async def test_whose_a_series_is_is_slurms_word(site: Site) -> None:
    assert await site.bring(site.columns(10.0, 12.5)) == StoredBatch(2)
    ((labels, points),) = site.store.named("lattice_cpu_seconds_total").items()
    assert dict(labels) == {
        "__name__": "lattice_cpu_seconds_total",
        "alloc": "7",
        "attempt": "1",
        "node": "n1",
        "user": "alice",
        "tenant": "physics",
        "project": "research",
        "vcluster": "batch",
        "source": "host_local_probe",
    }
    assert points == {site.now - 30: 10.0, site.now: 12.5}
    assert site.told == []
    assert site.intake.counts.samples_stored_total == 2


@pytest.mark.spec("TOP-2")
async def test_a_metrics_own_labels_are_kept(site: Site) -> None:
    column = site.columns(
        50.0, 60.0, metric="gpu_utilization_percent", labels=labelled(gpu_uuid="GPU-1")
    )
    await site.bring(column)
    ((labels, _),) = site.store.named("lattice_gpu_utilization_percent").items()
    assert dict(labels)["gpu_uuid"] == "GPU-1"


@pytest.mark.spec("TOP-2")
def test_no_metric_has_a_label_that_is_stamped() -> None:
    for metric in CATALOGUE.values():
        assert not set(metric.label_names) & {*STAMPED, "__name__"}, metric.name


@pytest.mark.spec("SRC-2")
async def test_what_was_not_measured_is_no_point(site: Site) -> None:
    assert await site.bring(site.columns(math.nan, 12.5, late_ms=(0, 40))) == StoredBatch(1)
    ((_, points),) = site.store.named("lattice_cpu_seconds_total").items()
    assert points == {site.now + 0.04: 12.5}
    assert await site.bring(site.columns(math.nan, math.nan)) == StoredBatch(0)
    assert await site.bring(site.columns(math.nan), at=(0.0,)) == StoredBatch(0)
    assert await site.bring(site.columns(13.0), at=(1.0,)) == StoredBatch(1)


# Attack 20: samples of a job that is not on the node, or under another's name.


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize(("node", "job_id"), [("n2", 7), ("n1", 8), ("n1", 99), ("n3", 7)])
async def test_a_job_that_is_not_on_the_node_gets_nothing(
    site: Site, node: str, job_id: int
) -> None:
    taken = await site.bring(site.columns(1.0, 2.0), node=node, job_id=job_id)
    assert (taken.stored, taken.refused) == (0, 2)
    assert site.store.writes == []
    assert site.told == [("StoreSamples", node, f"2 samples: job {job_id} did not run there")]
    assert site.intake.counts.samples_refused_total == 2


async def test_an_invented_job_is_asked_for_once(site: Site) -> None:
    for _ in range(5):
        await site.bring(site.columns(1.0, 2.0), job_id=99)
    assert len(site.scheduler.questions) == 1
    site.clock.advance(31)
    await site.bring(site.columns(1.0, 2.0), job_id=99)
    assert len(site.scheduler.questions) == 2


@pytest.mark.spec("TOP-2")
@pytest.mark.threat("metric-writer")
@pytest.mark.parametrize(
    "name", ["user", "tenant", "alloc", "node", "source", "__name__", "project"]
)
async def test_a_node_can_say_nobodys_name(site: Site, name: str) -> None:
    batch = batch_message(
        [JobColumns(7, site.started, (round(site.now * 1000),), (site.columns(1.0),))], 0
    )
    batch.jobs[0].series[0].labels.add(name=name, value="bob")
    taken = await site.intake.store("n1", batch_of(batch))
    assert (taken.stored, taken.refused) == (0, 1)
    assert site.store.writes == []


@pytest.mark.spec("TOP-2")
async def test_what_the_catalogue_does_not_know_is_refused_and_the_rest_stored(site: Site) -> None:
    batch = batch_message(
        [JobColumns(7, site.started, (round(site.now * 1000),), (site.columns(1.0),))], 0
    )
    odd = batch.jobs[0].series.add(metric="up", source=PROBE.value)
    odd.values.append(1.0)
    taken = await site.intake.store("n1", batch_of(batch))
    assert (taken.stored, taken.refused) == (1, 1)
    assert "catalogue" in taken.reason


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("source", [Provenance.SLURM_ACCOUNTING, Provenance.UNAVAILABLE])
async def test_no_node_speaks_for_slurm(site: Site, source: Provenance) -> None:
    taken = await site.bring(site.columns(1.0, 2.0, source=source))
    assert (taken.stored, taken.refused) == (0, 2)


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("moment", [61.0, 3600.0, -25 * 3600.0, -3600.0 - 121])
async def test_moments_at_which_it_was_not_there_are_refused(site: Site, moment: float) -> None:
    at = tuple(sorted((moment, 0.0)))
    taken = await site.bring(site.columns(1.0, 2.0), at=at)
    assert (taken.stored, taken.refused) == (1, 1)
    ((_, points),) = site.store.named("lattice_cpu_seconds_total").items()
    assert set(points) == {site.now}
    assert "moment" in site.told[0][2]


@pytest.mark.spec("TOP-2")
async def test_nothing_is_added_to_a_job_that_is_long_over(site: Site) -> None:
    ended = datetime.fromtimestamp(site.now, UTC) - timedelta(minutes=30)
    site.scheduler.allocations = [site.job(7, state=State.COMPLETED, ended=ended)]
    taken = await site.bring(site.columns(1.0, 2.0), at=(-1900.0, 0.0))
    assert (taken.stored, taken.refused) == (1, 1)


@pytest.mark.spec("TOP-6")
async def test_sensitive_work_never_reaches_the_shared_store(site: Site) -> None:
    site.sensitive.add("7")
    taken = await site.bring(site.columns(1.0, 2.0))
    assert (taken.stored, taken.refused) == (0, 2)
    assert site.store.writes == []


@pytest.mark.spec("TOP-2")
async def test_while_slurm_cannot_say_whose_it_is_the_node_keeps_it(site: Site) -> None:
    site.scheduler.past_down = True
    with pytest.raises(Unavailable):
        await site.bring(site.columns(1.0, 2.0), job_id=99)
    assert site.intake.counts.samples_refused_total == 0


@pytest.mark.spec("TOP-2")
async def test_while_the_store_is_away_the_node_keeps_it(site: Site) -> None:
    site.store.away = True
    with pytest.raises(Unavailable, match="did not answer"):
        await site.bring(site.columns(1.0, 2.0))
    site.store.away = False
    assert await site.bring(site.columns(1.0, 2.0)) == StoredBatch(2)
    assert site.intake.counts.samples_stored_total == 2


async def test_what_agents_lost_is_added_up(site: Site) -> None:
    for node, lost in (("n1", 5), ("n1", 5), ("n1", 9), ("n2", 1), ("n1", 2)):
        await site.bring(site.columns(1.0, 2.0), node=node, lost=lost)
    # 5, then 4 more; 1 of the other; 2 of an agent that began anew.
    assert site.intake.counts.samples_lost_by_agents_total == 12


_words = st.text(max_size=20)
_numbers = st.floats(width=64) | st.just(1.4e16)


@st.composite
def batches(draw: st.DrawFn) -> pb.SampleBatch:
    """Whatever a node that was taken over could send."""
    batch = pb.SampleBatch()
    for _ in range(draw(st.integers(1, 3))):
        job = batch.jobs.add(
            job_id=draw(st.sampled_from([0, 7, 8, 99])), started=draw(_numbers | st.just(1.79e9))
        )
        moments = st.integers(-(2**63), 2**63 - 1) | st.integers(1794702300000, 1794702500000)
        job.times_ms.extend(sorted(draw(st.lists(moments, max_size=3))))
        for _ in range(draw(st.integers(0, 3))):
            series = job.series.add(
                metric=draw(st.sampled_from([CPU, "up", "gpu_power_watts"]) | _words),
                source=draw(st.sampled_from([each.value for each in Provenance]) | _words),
            )
            series.values.extend(draw(st.lists(_numbers, max_size=3)))
            series.late_ms.extend(draw(st.lists(st.integers(0, 2**32 - 1), max_size=3)))
            for _ in range(draw(st.integers(0, 2))):
                name = draw(st.sampled_from(["user", "gpu_uuid", "node", "__name__"]) | _words)
                series.labels.add(name=name, value=draw(_words))
    return batch


@pytest.mark.spec("SRC-2", "TOP-2")
@pytest.mark.threat("metric-writer")
@given(batches())
async def test_whatever_a_node_sends_only_its_own_jobs_series_are_written(
    batch: pb.SampleBatch,
) -> None:
    site = Site()
    async with site.writing.running(SupervisedLoops()):
        await site.intake.store("n1", batch_of(batch))
    for series in (each for write in site.store.writes for each in write):
        labels = series.labels
        assert (labels["node"], labels["alloc"], labels["user"]) == ("n1", "7", "alice")
        known = CATALOGUE[labels["__name__"].removeprefix("lattice_")]
        assert set(labels) == {"__name__", *STAMPED, *known.label_names}
        for moment, value in series.points:
            assert site.started - 121 <= moment <= site.now + 60
            assert 0 <= value <= known.most
