"""What a run used: from the metric store, from Slurm's accounting, and never from nobody."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.domain.allocation import State
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import StoreSilent
from lattice.domain.runsummary import MOST_POINTS, AccountedUse, RunSummary, Use, Waste
from lattice.features.report.service.run_figures import LARGEST_TASK, WHOLE_NODES
from lattice.features.report.service.run_meter import RunMeter, coarse_question, coarse_steps
from lattice.observe.windows import RunWindow
from tests.unit.features.report.scripted import GIB, HOUR_S, Site


async def summary(site: Site) -> RunSummary:
    return await site.meter().summary(site.attempt)


@pytest.mark.spec("SRC-2")
async def test_a_silent_store_gives_no_number_and_says_so() -> None:
    site = Site()
    site.busy()
    site.store.silent = True
    found = await summary(site)
    for each in found.used:
        assert each.value is None, each
        assert each.source == "unavailable"
        assert each.reason
    cpu = found.figure(Use.CPU_SECONDS)
    assert cpu is not None
    assert (cpu.reason, cpu.last_error) == (
        "the metric store does not answer",
        "connection refused",
    )
    assert found.origin.source is Provenance.UNAVAILABLE
    assert found.covered is None
    # What Slurm itself knows is no measurement, and stands.
    assert found.value(Waste.TIME) == 2 * HOUR_S


@pytest.mark.spec("SRC-2")
async def test_a_refused_question_is_a_reason_too() -> None:
    site = Site()
    site.store.refuses = True
    found = await summary(site)
    assert all(each.value is None for each in found.used)
    assert found.origin.last_error == "too many samples"


@pytest.mark.spec("SRC-1", "TOP-5")
async def test_where_the_store_has_nothing_slurm_says_what_it_can() -> None:
    site = Site()
    site.accounting.told = AccountedUse(cpu_seconds=57_600.0, largest_task_bytes=5.0 * GIB)
    found = await summary(site)
    cpu, memory = found.figure(Use.CPU_SECONDS), found.figure(Use.MEMORY_PEAK)
    assert cpu is not None
    assert memory is not None
    assert (cpu.value, cpu.source) == (57_600.0, "slurm_accounting")
    assert found.value(Use.CPU_EFFICIENCY) == pytest.approx(50.0)
    assert (memory.value, memory.of) == (5.0 * GIB, LARGEST_TASK)
    # The largest task is no node: what nodes left unused is not known.
    assert found.value(Waste.MEMORY_PER_NODE) is None
    assert found.origin.source is Provenance.SLURM_ACCOUNTING
    assert found.value(Use.IO_READ) is None


@pytest.mark.spec("SRC-3")
async def test_what_slurm_accounts_of_a_slice_is_the_host_and_is_not_shown() -> None:
    site = Site()
    site.accounting.told = AccountedUse(cpu_seconds=57_600.0, largest_task_bytes=5.0 * GIB)
    meter = RunMeter(site.store, site.accounting, site.clock, lambda _: True)
    found = await meter.summary(site.attempt)
    for use in (Use.CPU_SECONDS, Use.MEMORY_PEAK, Use.CPU_EFFICIENCY, Use.NODE_ENERGY):
        figure = found.figure(use)
        assert figure is not None
        assert figure.value is None
        assert figure.reason


@pytest.mark.spec("TOP-5")
async def test_measured_comes_before_accounted() -> None:
    site = Site()
    site.busy()
    site.accounting.told = AccountedUse(
        cpu_seconds=1.0, largest_task_bytes=1.0, energy_joules=7200.0
    )
    found = await summary(site)
    assert found.value(Use.CPU_SECONDS) == 105_000.0
    assert found.value(Use.MEMORY_PEAK) == 90 * GIB
    assert found.value(Use.NODE_ENERGY) == 7200.0


@pytest.mark.spec("TOP-5")
async def test_an_accounting_that_is_away_takes_nothing_from_what_was_measured() -> None:
    site = Site()
    site.busy()
    site.accounting.down = True
    assert (await summary(site)).value(Use.CPU_SECONDS) == 105_000.0


@pytest.mark.spec("SRC-1", "TOP-5")
async def test_every_figure_of_a_measured_run() -> None:
    site = Site()
    site.busy()
    found = await summary(site)
    values = {each.name: each.value for each in found.used}
    assert values == {
        "cpu_seconds": 105_000.0,
        "cpu_efficiency": pytest.approx(100 * 105_000 / (16 * 7200)),
        "cpu_peak_cores": 15.5,
        "memory_peak": 90 * GIB,
        "gpu_utilization": 75.0,
        "gpu_memory_peak": 30 * GIB,
        "gpu_energy": 4 * 720_000.0,
        "node_energy": None,
        "io_read": 4 * GIB,
        "io_written": 4.0,
        "network_sent": 1200.0,
        "network_received": None,
        "oom_kills": 0.0,
    }
    assert {each.source for each in found.used if each.value is not None} == {"host_local_probe"}
    left = {each.name: each.value for each in found.wasted}
    assert left["cpu_core_hours"] == pytest.approx(32 - 105_000 / 3600)
    assert left["gpu_hours"] == pytest.approx(2.0)
    assert left["memory_per_node"] == 10 * GIB
    memory = found.figure(Use.MEMORY_PEAK)
    assert memory is not None
    assert memory.of == "n2"
    assert found.covered == 1.0
    assert str(found.origin.coverage) == "2/2 nodes"
    assert found.origin.resolution_s == pytest.approx(30.0, abs=0.1)
    assert found.origin.age_s == HOUR_S + 10
    assert [each.node for each in found.per_node] == ["n1", "n2"]
    assert len(found.per_gpu) == 4


@pytest.mark.spec("TOP-5")
async def test_what_a_node_counts_from_its_boot_is_told_by_what_it_grew() -> None:
    site = Site()
    site.busy()
    site.store.scope = "node"
    sent = (await summary(site)).figure(Use.NETWORK_SENT)
    assert sent is not None
    assert (sent.value, sent.of) == (900.0, WHOLE_NODES)


@pytest.mark.spec("TOP-5")
async def test_a_counter_that_began_anew_is_asked_how_much_it_grew() -> None:
    site = Site()
    site.busy()
    site.store.tell("resets io_read_bytes_total", n1=1.0, n2=0.0)
    site.store.tell("increase io_read_bytes_total", n1=5 * GIB, n2=0.0)
    assert (await summary(site)).value(Use.IO_READ) == 6 * GIB


@pytest.mark.spec("SRC-2")
async def test_a_part_of_the_nodes_is_never_taken_for_the_whole() -> None:
    site = Site()
    site.busy()
    for part in site.store.parts.values():
        for key in [each for each in part if each[0] == "n2"]:
            del part[key]
    site.store.measured = 1.0
    found = await summary(site)
    cpu = found.figure(Use.CPU_SECONDS)
    assert cpu is not None
    assert (cpu.value, cpu.of) == (50_000.0, "1 of 2 nodes")
    for name in (Use.CPU_EFFICIENCY, Waste.CPU_CORE_HOURS, Waste.GPU_HOURS, Waste.MEMORY_PER_NODE):
        figure = found.figure(name)
        assert figure is not None
        assert figure.value is None, name
        assert "only" in figure.reason
    assert found.covered == 0.5
    assert str(found.origin.coverage) == "1/2 nodes"


@pytest.mark.spec("TOP-5")
async def test_two_who_measure_the_same_are_not_added() -> None:
    site = Site()
    site.busy()
    far = Site()
    far.busy()
    far.store.source = "site_exporter"
    near_answer = await site.store.query('"figure", "max cpu_seconds_total"', at=1.0)
    far_answer = await far.store.query('"figure", "max cpu_seconds_total"', at=1.0)

    async def both(promql: str, *, at: float, within_s: float = 10.0) -> object:
        return (*far_answer, *near_answer)

    site.store.query = both  # type: ignore[assignment,method-assign]
    cpu = (await summary(site)).figure(Use.CPU_SECONDS)
    assert cpu is not None
    assert (cpu.value, cpu.source) == (105_000.0, "host_local_probe")


@pytest.mark.spec("SRC-2")
async def test_a_run_without_gpus_says_that_it_had_none() -> None:
    site = Site(gpus=None)
    found = (await summary(site)).figure(Use.GPU_UTILIZATION)
    assert found is not None
    assert (found.value, found.reason) == (None, "it had no GPU")


@pytest.mark.spec("TOP-4")
async def test_every_selector_has_the_whole_scope() -> None:
    site = Site(state=State.RUNNING, ended=None)
    site.store.tell("max cpu_seconds_total", n1=1.0, n2=1.0)
    await site.meter().whole(site.attempt)
    assert len(site.store.questions) > len(Shown)
    scope = 'alloc="42",attempt="1",project="research",tenant="physics",user="alice"'
    for question in site.store.questions:
        selectors = re.findall(r"lattice_[a-z0-9_]+(.*?)[\[)]", question)
        assert selectors
        assert set(selectors) == {f"{{{scope}}}"}, question


@pytest.mark.spec("TOP-5")
async def test_the_series_are_coarse_whatever_the_length() -> None:
    for hours in (0.01, 1, 48, 24 * 30):
        ended = Site().attempt.attempt.ended
        assert ended is not None
        site = Site(started=ended - timedelta(hours=hours), ended=ended)
        site.store.tell("max cpu_seconds_total", n1=1.0, n2=1.0)
        site.store.coarse = {"cpu_seconds_total": 3.0, "gpu_utilization_percent": 50.0}
        found = await site.meter().whole(site.attempt)
        cpu, gpu = sorted(found.series, key=lambda each: each.metric)
        assert (cpu.metric, gpu.metric) == ("cpu_utilization", "gpu_utilization")
        assert 1 <= len(cpu.mean) == len(cpu.peak) <= MOST_POINTS
        assert set(gpu.mean) == {50.0}
        assert set(gpu.peak) == {100.0}
        assert cpu.step_s * len(cpu.mean) <= max(hours * HOUR_S, cpu.step_s)


@pytest.mark.spec("TOP-5")
async def test_what_is_to_be_kept_waits_for_the_store() -> None:
    site = Site()
    site.store.silent = True
    with pytest.raises(StoreSilent):
        await site.meter().whole(site.attempt)


@pytest.mark.spec("TOP-4")
def test_a_question_needs_nothing_that_only_one_store_knows() -> None:
    site = Site()
    steps = coarse_steps(RunWindow.of(site.attempt, 2e9), 30.0)
    for metric in Shown:
        question = str(coarse_question(steps, metric))
        assert question.count("(") == question.count(")")
        for only_one in ("label_set", "rollup", "share_le", "increase_pure", "first_over_time"):
            assert only_one not in question


@pytest.mark.spec("TOP-5")
@pytest.mark.parametrize(
    ("samples", "rate_s"), [(7200.0, 60), (240.0, 75), (None, 75)], ids=["1 s", "30 s", "unknown"]
)
async def test_rates_are_as_close_as_the_run_was_measured(
    samples: float | None, rate_s: int
) -> None:
    site = Site()
    site.store.tell("max cpu_seconds_total", n1=1.0, n2=1.0)
    if samples is not None:
        site.store.tell("count cpu_seconds_total", n1=samples, n2=samples)
    await site.meter().whole(site.attempt)
    rates = [re.findall(r"rate\([^\[]*\[(\d+)s\]", each) for each in site.store.questions]
    assert {int(each) for found in rates for each in found} == {rate_s}
    assert any('"busiest"' in each for each in site.store.questions)


@pytest.mark.spec("TOP-4", "SRC-2")
async def test_a_run_that_nobody_owns_is_never_asked_about() -> None:
    site = Site()
    job = replace(site.attempt, allocation=replace(site.attempt.allocation, user=""))
    for found in (await site.meter().summary(job), await site.meter().whole(job)):
        assert found.origin.reason == "Slurm does not say whose it is"
        assert all(each.value is None for each in found.used)
    assert site.store.questions == []
