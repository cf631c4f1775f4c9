"""A look at a job: failure stories first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lattice.access.actor import Actor, Role
from lattice.access.limits import CallerLimits, Questions
from lattice.base.errors import (
    DataUnavailable,
    NotFound,
    RateLimited,
    Unavailable,
    UsageError,
)
from lattice.domain.allocation import State
from lattice.domain.measured import Shown
from lattice.domain.metric import CATALOGUE, Absence, Provenance, Sample
from lattice.domain.metricstore import BadQuery, StoreSilent
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.top.model import RowKind, TopAnswer, TopCell, TopMode, TopQuery, TopRow
from lattice.features.top.operations import TopRequest
from lattice.features.top.service.rows import (
    JUST_BEGUN,
    NO_GPUS,
    NONE_TIMED,
    NONE_TIMED_YET,
    ONE_SAMPLE,
    TOO_SHORT,
)
from lattice.features.top.service.stored import StoredValues, Stretch
from lattice.observe.metric_query import OwnerFilter
from lattice.wire.convert import value_of
from lattice.wire.v1.top_pb2 import QueryMetricsRequest
from tests.fakes.node_looks import sight, snapshot
from tests.unit.features.top.site import ALICE, BOB, Site


def cell(row: TopRow, metric: Shown) -> TopCell:
    return next(each for each in row.cells if each.metric is metric)


def row(answer: TopAnswer, node: str) -> TopRow:
    return next(each for each in answer.rows if each.node == node)


def measured(site: Site, node: str, cpu: float = 0.0, **more: float) -> None:
    """What an agent would tell: two looks, 30 s apart."""
    now = site.clock.now().timestamp() - 3
    samples = [Sample("cpu_seconds_total", 100.0 + cpu * 0.3, now)]
    samples += [Sample(name, value, now) for name, value in more.items()]
    before = Sample("cpu_seconds_total", 100.0, now - 30)
    site.looks.sights[node] = sight(
        node,
        replace(snapshot(0, *samples), time=now),
        replace(snapshot(0, before), time=now - 30),
    )


@pytest.mark.spec("TOP-3", "SRC-1")
async def test_a_silent_store_is_stood_in_for_by_the_agents_and_it_says_so() -> None:
    site = Site()
    site.store.problem = StoreSilent("it did not answer within 2 s")
    measured(site, "n1", cpu=150.0, memory_used_bytes=2e9)
    measured(site, "n2", cpu=50.0, memory_used_bytes=1e9)
    service = site.service()
    answer = await service.read(ALICE, "1", TopQuery())
    assert answer.notes[0].startswith("The metric store does not answer; these are the agents'")
    site.clock.advance(180)
    for node, cpu in (("n1", 150.0), ("n2", 50.0)):
        measured(site, node, cpu=cpu, memory_used_bytes=1.5e9)
    answer = await service.read(ALICE, "1", TopQuery(mode=TopMode.PER_NODE))
    assert answer.origin.via == "agents (the metric store does not answer)"
    assert answer.origin.last_error == "it did not answer within 2 s"
    assert any("has not answered for 3 min" in each for each in answer.notes)
    assert str(answer.origin.coverage) == "2/2 nodes"
    assert cell(row(answer, "n1"), Shown.CPU_UTILIZATION).value == pytest.approx(150.0)
    assert cell(answer.rows[0], Shown.CPU_UTILIZATION).value == pytest.approx(200.0)
    assert cell(answer.rows[0], Shown.MEMORY_USED).value == 3e9
    assert cell(answer.rows[0], Shown.CPU_UTILIZATION).history == ()


async def test_a_store_that_hangs_counts_as_silent() -> None:
    class Hanging:
        async def query(self, *_: object, **__: object) -> Any:
            await asyncio.Event().wait()

    stored = StoredValues(Hanging(), now_s=0.0, grace_s=0.01)  # type: ignore[arg-type]
    owner = OwnerFilter((("alloc", "1"), ("attempt", "1"), ("user", "alice")))
    with pytest.raises(StoreSilent):
        await stored.read(owner, TopQuery(), Stretch(2e9, 3600, True, None), 30.0, ("n1",))


async def test_what_is_over_needs_the_store() -> None:
    site = Site(state=State.COMPLETED)
    ended = site.clock.now() - timedelta(minutes=10)
    site = Site(state=State.COMPLETED, ended=ended)
    site.store.problem = StoreSilent("connection refused")
    with pytest.raises(Unavailable, match="connection refused"):
        await site.look()
    assert site.looks.asked == []


async def test_a_store_that_refuses_is_stood_in_for_too() -> None:
    site = Site()
    site.store.problem = BadQuery("too many series")
    measured(site, "n1", cpu=1.0)
    answer = await site.look()
    assert answer.origin.via == "agents (the metric store can't answer this)"
    assert answer.origin.last_error == "too many series"
    assert str(answer.origin.coverage) == "1/2 nodes"


@pytest.mark.spec("SRC-2")
async def test_live_values_are_never_passed_off_as_those_of_a_time() -> None:
    site = Site()
    site.store.problem = StoreSilent("away")
    measured(site, "n1", cpu=1.0)
    answer = await site.look(duration_s=300)
    assert answer.duration_s is None
    assert any("not of the time that was asked for" in each for each in answer.notes)


async def test_without_a_store_the_agents_are_asked() -> None:
    site = Site()
    site.with_store = False
    measured(site, "n1", cpu=1.0)
    answer = await site.look()
    assert answer.origin.via == "agents (no metric store is configured)"


@pytest.mark.spec("SRC-2", "SRC-1")
async def test_a_node_that_is_gone_has_a_reason_and_no_value() -> None:
    site = Site()
    site.store.value("total", 2e9, "memory_used_bytes", node="n1")
    site.store.value("total", 7e9, "memory_used_bytes", node="n2")
    site.store.alive("n1")
    site.store.alive("n2", ago_s=200.0)
    gone = site.clock.now().timestamp() - 40
    site.looks.silences["n2"] = NodeUnreachable("n2", "node lost", gone)
    answer = await site.look(mode=TopMode.PER_NODE)
    lost = row(answer, "n2")
    assert lost.reason == "node lost, for 40 s"
    assert all(each.value is None and each.reason == lost.reason for each in lost.cells)
    assert lost.age_s == pytest.approx(200.0)
    assert cell(answer.rows[0], Shown.MEMORY_USED).value == 2e9
    assert str(answer.origin.coverage) == "1/2 nodes"


@pytest.mark.spec("SRC-2", "SRC-3")
async def test_a_node_that_can_measure_nothing_has_its_own_reason() -> None:
    site = Site()
    site.store.alive("n1")
    absences = (Absence(each, "the guest can't be reached", "why") for each in CATALOGUE)
    silent = replace(snapshot(0, *absences), time=site.clock.now().timestamp())
    site.looks.sights["n2"] = sight("n2", silent)
    answer = await site.look(mode=TopMode.PER_NODE)
    assert row(answer, "n2").reason == "the guest can't be reached (why)"


async def test_an_agent_that_answers_though_the_store_has_nothing_is_told_apart() -> None:
    site = Site()
    site.store.alive("n1")
    measured(site, "n2", cpu=1.0)
    answer = await site.look(mode=TopMode.PER_NODE)
    assert row(answer, "n2").reason == "no sample in the last 80 s, though its agent answers"


async def test_at_most_sixteen_nodes_are_asked_why_and_not_again_at_once() -> None:
    site = Site("n[1-40]", 40)
    service = site.service()
    for number in range(1, 41):
        site.looks.silences[f"n{number}"] = NodeUnreachable(f"n{number}", "its agent is not linked")
    await service.read(ALICE, "1", TopQuery(mode=TopMode.PER_NODE))
    await service.read(ALICE, "1", TopQuery(mode=TopMode.PER_NODE))
    assert len(site.looks.asked) == 1
    assert len(site.looks.asked[0] or ()) == 16
    site.clock.advance(5)
    await service.read(ALICE, "1", TopQuery(mode=TopMode.PER_NODE))
    assert len(site.looks.asked) == 2, "a silence is asked about again soon"


@pytest.mark.spec("SRC-4")
async def test_a_broken_driver_is_told_in_its_own_words() -> None:
    site = Site("n1", 1, gpus=4)
    site.store.alive("n1")
    site.store.value("coverage", 1)
    now = site.clock.now().timestamp()
    broken = Absence(
        "gpu_utilization_percent",
        "the NVIDIA driver does not answer",
        "Failed to initialize NVML: Driver/library version mismatch",
    )
    site.looks.sights["n1"] = sight("n1", snapshot(0, Sample("processes", 1.0, now), broken))
    answer = await site.look()
    found = cell(answer.rows[0], Shown.GPU_UTILIZATION)
    assert found.value is None
    assert found.source is Provenance.UNAVAILABLE
    assert found.reason == "the NVIDIA driver does not answer"
    assert found.last_error == "Failed to initialize NVML: Driver/library version mismatch"


@pytest.mark.spec("SRC-4")
async def test_a_job_without_gpus_is_not_asked_for_them() -> None:
    site = Site("n1", 1, gpus=0)
    for metric in Shown:
        if not metric.value.startswith("gpu"):
            site.store.value(metric.value, 1.0)
    site.store.value("total", 1.0, "memory_used_bytes")
    site.store.value("coverage", 1)
    answer = await site.look()
    assert cell(answer.rows[0], Shown.GPU_POWER_DRAW).reason == NO_GPUS
    assert site.looks.asked == []


async def test_a_job_that_has_just_begun_has_no_rate_yet() -> None:
    site = Site("n1", 1)
    began = site.clock.now() - timedelta(seconds=20)
    site = Site("n1", 1, submitted=began, started=began)
    site.store.value("coverage", 1)
    answer = await site.look()
    assert cell(answer.rows[0], Shown.CPU_UTILIZATION).reason == ONE_SAMPLE
    assert cell(answer.rows[0], Shown.MEMORY_USED).reason == JUST_BEGUN
    assert cell(answer.rows[0], Shown.IO_LATENCY_P99).reason == ONE_SAMPLE
    site.store.value("cpu_utilization", 1.5)
    assert cell((await site.look()).rows[0], Shown.IO_LATENCY_P99).reason == NONE_TIMED_YET
    site.store.value("io_latency_p99", float("nan"))
    assert cell((await site.look()).rows[0], Shown.IO_LATENCY_P99).reason == NONE_TIMED_YET


@pytest.mark.spec("SRC-2")
async def test_a_job_without_a_sample_yet_says_so_and_not_for_how_long_there_is_none() -> None:
    site = Site("n1", 1)
    began = site.clock.now() - timedelta(seconds=5)
    site = Site("n1", 1, submitted=began, started=began)
    measured(site, "n1", cpu=1.0)
    answer = await site.look()
    assert answer.rows[0].reason == "the job has just begun; no sample of it is stored yet"
    assert cell(answer.rows[0], Shown.IO_LATENCY_P99).reason == answer.rows[0].reason
    site.clock.advance(5)
    site.looks.sights.clear()
    site.looks.silences["n1"] = NodeUnreachable("n1", "it does not know this job")
    answer = await site.look()
    assert answer.rows[0].reason == "it does not know this job; the job has just begun"


@pytest.mark.spec("SRC-2")
async def test_what_is_over_has_not_just_begun() -> None:
    now = Site().clock.now()
    times = {"submitted": now - timedelta(hours=1), "ended": now - timedelta(minutes=10)}
    site = Site("n1", 1, state=State.COMPLETED, **times)
    site.store.value("coverage", 1)
    cells = (await site.look()).rows[0]
    assert cell(cells, Shown.IO_LATENCY_P99).reason == NONE_TIMED
    times = {"submitted": now - timedelta(seconds=630), "ended": now - timedelta(minutes=10)}
    site = Site("n1", 1, state=State.COMPLETED, **times)
    site.store.value("coverage", 1)
    cells = (await site.look()).rows[0]
    assert cell(cells, Shown.IO_LATENCY_P99).reason == TOO_SHORT


@pytest.mark.spec("AUTH-12", "TOP-4")
async def test_anothers_job_and_one_that_is_not_there_are_one_answer_and_nothing_is_asked() -> None:
    site = Site()
    told = set()
    for name in ("2", "77777"):
        with pytest.raises(NotFound) as refusal:
            await site.look(name)
        told.add((refusal.value.message.replace(name, "ID"), refusal.value.hint))
    assert len(told) == 1
    assert site.store.asked == []


@pytest.mark.spec("AUTH-7")
async def test_a_read_by_an_admin_is_written_down_for_the_owner() -> None:
    site = Site()
    await site.look("1", ALICE)
    assert await site.sharing.notes.of(site.scheduler.allocations[:1]) == ()
    await site.look("1", Actor(sub="sub-root", user="root", role=Role.SYSTEM_ADMIN))
    (note,) = await site.sharing.notes.of(site.scheduler.allocations[:1])
    assert (note.reader, note.reads) == ("root", 1)


@pytest.mark.spec("LIMIT-1")
async def test_a_look_is_one_of_the_callers_metric_questions() -> None:
    asked = []

    class Limits(CallerLimits):
        async def ask(self, sub: str, kind: Questions) -> None:
            asked.append((sub, kind))
            if sub == BOB.sub:
                raise RateLimited("too many")

    site = Site()
    site.limits = Limits()  # type: ignore[abstract]
    site.store.value("coverage", 2)
    await site.look()
    with pytest.raises(RateLimited):
        await site.look("2", BOB)
    assert asked == [(ALICE.sub, Questions.QUERY_METRICS), (BOB.sub, Questions.QUERY_METRICS)]
    assert len(site.store.asked) == 1, "a look is one question to the store"


async def test_what_has_not_started_has_nothing_to_measure() -> None:
    site = Site(started=None, state=State.PENDING)
    with pytest.raises(DataUnavailable):
        await site.look()


async def test_attempts_are_told_apart() -> None:
    site = Site()
    with pytest.raises(NotFound, match="no attempt 3"):
        await site.look(attempt=3)
    await site.look(attempt=1)
    assert 'attempt="1"' in site.store.asked[-1]


@pytest.mark.parametrize("duration_s", [0, -5, 10**9])
async def test_a_duration_has_bounds(duration_s: int) -> None:
    with pytest.raises(UsageError):
        await Site().look(duration_s=duration_s)


@pytest.mark.spec("TOP-4")
async def test_what_is_over_is_looked_at_over_its_whole_life() -> None:
    site = Site()
    ended = site.clock.now() - timedelta(minutes=20)
    site = Site(state=State.COMPLETED, ended=ended)
    site.store.value("memory_used", 3e9)
    site.store.value("peak_memory_used", 4e9)
    site.store.value("coverage", 2)
    answer = await site.look()
    assert answer.duration_s == 2400
    assert set(site.store.moments) == {ended.timestamp()}
    assert "[2400s]" in site.store.asked[0]
    assert len(site.store.asked) == 2, "the means of counters are a question of their own"
    found = cell(answer.rows[0], Shown.MEMORY_USED)
    assert (found.value, found.peak) == (3e9, 4e9)


@pytest.mark.spec("SRC-1")
async def test_the_age_of_a_sample_is_counted_to_now_also_after_the_end() -> None:
    site = Site()
    site = Site(state=State.COMPLETED, ended=site.clock.now() - timedelta(minutes=20))
    site.store.value("total", 2e9, "memory_used_bytes", node="n1")
    for node in ("n1", "n2"):
        site.store.alive(node, ago_s=1230.0)
    answer = await site.look(mode=TopMode.PER_NODE)
    assert row(answer, "n1").age_s == pytest.approx(1230.0)
    assert answer.origin.age_s == pytest.approx(1230.0)


@pytest.mark.spec("SRC-1", "TOP-6")
async def test_sensitive_work_is_not_sought_in_the_shared_store() -> None:
    site = Site()
    site.sensitive.add("1")
    measured(site, "n1", cpu=1.0)
    answer = await site.look()
    assert answer.origin.via == "agents (sensitive work does not stand in the shared store)"
    assert site.store.asked == []
    site = Site(state=State.COMPLETED, ended=site.clock.now() - timedelta(minutes=20))
    site.sensitive.add("1")
    with pytest.raises(Unavailable, match="does not stand in the shared store") as refused:
        await site.look()
    assert "Try again" not in (refused.value.hint or "")


@pytest.mark.spec("TOP-1")
async def test_the_summary_weighs_a_nodes_mean_by_its_gpus() -> None:
    site = Site(gpus=4)
    for node, mean, cards in (("n1", 90.0, 3), ("n2", 10.0, 1)):
        site.store.value("mean", mean, "gpu_utilization_percent", node=node)
        site.store.value("of", cards, "gpu_utilization_percent", node=node)
    site.store.alive("n1", "n2")
    answer = await site.look(mode=TopMode.PER_NODE)
    found = cell(answer.rows[0], Shown.GPU_UTILIZATION)
    assert (found.value, found.of) == (70.0, 4)


async def test_every_gpu_has_a_row_and_a_node_without_one_too() -> None:
    site = Site(gpus=2)
    for uuid, value in (("GPU-a", 10.0), ("GPU-b", 30.0)):
        site.store.value("mean", value, "gpu_utilization_percent", node="n1", gpu_uuid=uuid)
    site.store.alive("n1", "n2")
    answer = await site.look(mode=TopMode.PER_GPU)
    kinds = [(each.kind, each.node, each.gpu_uuid) for each in answer.rows]
    assert kinds == [
        (RowKind.SUMMARY, "", ""),
        (RowKind.GPU, "n1", "GPU-a"),
        (RowKind.GPU, "n1", "GPU-b"),
        (RowKind.NODE, "n2", ""),
    ]
    assert cell(answer.rows[0], Shown.GPU_UTILIZATION).value == 20.0


@pytest.mark.spec("SRC-1")
async def test_where_a_figure_comes_from_is_told() -> None:
    site = Site("n1", 1)
    site.store.value("network_tx_bytes", 10.0)
    labels = {"source": "host_local_probe", "scope": "node"}
    site.store.value("count", 1, "network_tx_bytes_total", **labels)
    site.store.value("moment0", site.clock.now().timestamp() - 12)
    site.store.value("coverage", 1)
    answer = await site.look()
    found = cell(answer.rows[0], Shown.NETWORK_TX_BYTES)
    assert (found.scope, found.source) == ("node", Provenance.HOST_LOCAL_PROBE)
    assert answer.origin.age_s == pytest.approx(12.0)
    assert answer.origin.resolution_s == 30.0
    assert answer.origin.source is Provenance.HOST_LOCAL_PROBE
    assert answer.origin.via == "store"


@pytest.mark.spec("SRC-2")
async def test_a_quantile_of_nothing_is_no_number() -> None:
    site = Site("n1", 1)
    site.store.value("io_latency_p99", float("nan"))
    site.store.value("coverage", 1)
    found = cell((await site.look()).rows[0], Shown.IO_LATENCY_P99)
    assert found.value is None
    assert found.reason == "nothing was read or written in this time"


@pytest.mark.spec("WATCH-3")
async def test_windows_follow_the_mode() -> None:
    site = Site("n1", 1)
    await site.look()
    site.mode = ModeInForce(allocation="1", mode=Mode.DEBUG, interval_s=1.0)
    await site.look()
    assert "[80s]" in site.store.asked[0]
    assert "[8s]" in site.store.asked[-1]


async def test_a_history_comes_with_the_first_look_where_it_is_asked_for() -> None:
    site = Site("n1", 1)
    site.store.value("total", 2e9, "memory_used_bytes")
    site.store.value("coverage", 1)
    answer = await site.look(history=True)
    assert [each.value for each in cell(answer.rows[0], Shown.MEMORY_USED).history] == [2e9]
    ((start, end, step_s),) = site.store.ranges
    assert (end - start) / step_s <= 60


async def test_a_silent_control_plane_is_told_in_the_head() -> None:
    site = Site("n1", 1)
    site.degraded = "control plane degraded: the agreed state does not answer"
    assert (await site.look()).notes[0].startswith("control plane degraded")


@pytest.mark.spec("ALLOC-7")
async def test_with_slurm_away_the_state_is_told_with_its_age() -> None:
    site = Site("n1", 1)
    site.scheduler.down = True
    site.clock.advance(40)
    answer = await site.look()
    assert not answer.sources[0].ok
    assert answer.sources[0].age_s == pytest.approx(40.0)


async def test_where_nodes_are_missing_the_total_is_asked_for_without_them() -> None:
    site = Site()
    site.store.value("coverage", 1)
    site.store.alive("n1")
    answer = await site.look()
    assert len(site.store.asked) == 3, "the look, who is missing, and the total without those"
    assert " and last_over_time(" not in site.store.asked[0]
    assert " and last_over_time(" in site.store.asked[2]
    assert str(answer.origin.coverage) == "1/2 nodes"


def test_a_message_of_grpc_has_the_same_defaults() -> None:
    assert value_of(QueryMetricsRequest(id="1"), TopRequest) == TopRequest(id="1")
    asked = QueryMetricsRequest(id="1", mode="per_gpu", duration_s=300, attempt=2, history=True)
    assert value_of(asked, TopRequest) == TopRequest(
        id="1", mode=TopMode.PER_GPU, duration_s=300, attempt=2, history=True
    )
    with pytest.raises(UsageError):
        value_of(QueryMetricsRequest(id="1", mode="all"), TopRequest)
