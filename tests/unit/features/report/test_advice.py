"""Advice: the right flag for what was measured, and none for what was not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.allocation import State
from lattice.domain.runsummary import Figure, GpuUse, NodeUse, RunSummary, Use
from lattice.features.report.model import LEAST_COVERED, Advice
from lattice.features.report.service.advice import advise
from lattice.features.report.service.run_figures import LARGEST_TASK
from tests.unit.features.report.scripted import GIB, HOUR_S, Site


async def whole(**facts: Any) -> RunSummary:
    site = Site(**facts)
    site.busy()
    return await site.meter().summary(site.attempt)


def having(summary: RunSummary, **values: float | None) -> RunSummary:
    return replace(
        summary,
        used=tuple(
            replace(each, value=values[each.name]) if each.name in values else each
            for each in summary.used
        ),
    )


def rules(summary: RunSummary) -> dict[str, Advice]:
    return {each.rule: each for each in advise(summary)[0]}


@pytest.mark.spec("TOP-5")
async def test_nothing_is_advised_to_a_run_that_used_what_it_had() -> None:
    assert advise(await whole(time_limit_s=3 * HOUR_S)) == ((), "")


@pytest.mark.spec("TOP-5")
async def test_no_advice_rests_on_too_little() -> None:
    wasteful = having(await whole(), memory_peak=1.0 * GIB)
    assert "memory_too_much" in rules(wasteful)
    thin = replace(wasteful, covered=LEAST_COVERED - 0.01)
    assert "memory_too_much" not in rules(thin)
    assert "79 %" in advise(thin)[1]
    assert "80 %" in advise(thin)[1]
    unknown = replace(wasteful, covered=None)
    assert "memory_too_much" not in rules(unknown)
    short = replace(wasteful, run=replace(wasteful.run, wall_s=299.0))
    assert "memory_too_much" not in rules(short)
    assert advise(short)[1]


@pytest.mark.spec("TOP-5")
async def test_none_is_given_while_it_runs() -> None:
    wasteful = having(await whole(), memory_peak=1.0 * GIB)
    going = replace(wasteful, run=replace(wasteful.run, ended=None))
    assert advise(going)[0] == ()
    assert "still runs" in advise(going)[1]


@pytest.mark.spec("TOP-5")
async def test_memory_asked_ten_times_over() -> None:
    advice = rules(having(await whole(), memory_peak=8.5 * GIB))["memory_too_much"]
    assert advice.flag == "--mem=11G"
    assert "100.0 GiB a node" in advice.words
    assert "8.5 GiB" in advice.words
    assert "on n2" in advice.words


@pytest.mark.spec("TOP-5")
async def test_small_memory_is_advised_in_megabytes() -> None:
    summary = having(await whole(memory_bytes=8 * GIB), memory_peak=0.3 * GIB)
    assert rules(summary)["memory_too_much"].flag == "--mem=384M"


@pytest.mark.spec("TOP-5")
async def test_memory_that_was_almost_not_enough() -> None:
    advice = rules(having(await whole(), memory_peak=97.0 * GIB))
    assert advice["memory_tight"].flag == "--mem=117G"
    assert "memory_too_much" not in advice


@pytest.mark.spec("TOP-5")
@pytest.mark.parametrize(("facts", "kills"), [({}, 3.0), ({"state": State.OUT_OF_MEMORY}, 0.0)])
async def test_a_job_killed_for_memory_is_told_to_ask_for_more(
    facts: dict[str, Any], kills: float
) -> None:
    found = rules(having(await whole(**facts), oom_kills=kills, memory_peak=2.0 * GIB))
    assert found["out_of_memory"].flag == "--mem=150G"
    assert "memory_too_much" not in found


@pytest.mark.spec("TOP-5")
async def test_gpus_that_never_ran_anything() -> None:
    summary = await whole()
    cards = [
        replace(each, utilization_peak=0.0) if each.node == "n2" else each
        for each in summary.per_gpu
    ]
    advice = rules(replace(summary, per_gpu=tuple(cards)))["gpus_idle"]
    assert advice.flag == "--gpus=2"
    assert "2 of 4 GPUs" in advice.words
    assert "GPU_c" in advice.words
    none = tuple(replace(each, utilization_peak=0.5) for each in cards)
    advice = rules(replace(summary, per_gpu=none))["gpus_idle"]
    assert advice.flag == ""
    assert "Leave --gpus" in advice.words


@pytest.mark.spec("TOP-5")
async def test_a_gpu_that_was_not_measured_is_not_called_idle() -> None:
    summary = await whole()
    cards = (*summary.per_gpu[:3], replace(summary.per_gpu[3], utilization_peak=None))
    idle = tuple(replace(each, utilization_peak=each.utilization_peak and 0.0) for each in cards)
    assert "gpus_idle" not in rules(replace(summary, per_gpu=idle))


@pytest.mark.spec("TOP-5")
async def test_gpus_that_waited() -> None:
    advice = rules(having(await whole(), gpu_utilization=12.0, cpu_efficiency=97.0))["gpus_low"]
    assert "12 %" in advice.words
    assert "97 %" in advice.words
    assert advice.flag == ""


@pytest.mark.spec("TOP-5")
async def test_cpus_that_did_nothing() -> None:
    summary = having(await whole(), cpu_efficiency=12.0, cpu_peak_cores=2.4)
    assert rules(summary)["cpus_idle"].flag == "--cpus-per-task=2"
    tasks = replace(summary, asked=replace(summary.asked, tasks=16))
    assert rules(tasks)["cpus_idle"].flag == "--ntasks=3"
    bursts = having(summary, cpu_peak_cores=14.0)
    assert "cpus_idle" not in rules(bursts)


@pytest.mark.spec("TOP-5")
async def test_nodes_that_did_nothing() -> None:
    summary = await whole()
    lazy = (summary.per_node[0], replace(summary.per_node[1], cpu_seconds=3.0))
    advice = rules(replace(summary, per_node=lazy))["nodes_idle"]
    assert (advice.flag, "n2" in advice.words) == ("--nodes=1", True)
    unseen = (summary.per_node[0], NodeUse(node="n2"))
    assert "nodes_idle" not in rules(replace(summary, per_node=unseen))


@pytest.mark.spec("TOP-5")
async def test_time() -> None:
    assert rules(await whole(time_limit_s=24 * HOUR_S))["time_too_long"].flag == "--time=02:30:00"
    failed = await whole(time_limit_s=24 * HOUR_S, state=State.FAILED)
    assert "time_too_long" not in rules(failed)
    ended = await whole(time_limit_s=2 * HOUR_S, state=State.TIMEOUT)
    assert rules(ended)["ended_at_its_limit"].flag == "--time=03:00:00"
    days = await whole(time_limit_s=48 * HOUR_S, state=State.TIMEOUT)
    assert rules(days)["ended_at_its_limit"].flag == "--time=3-00:00:00"


_VALUES = st.none() | st.floats(0, 1e15, allow_nan=False)


@pytest.mark.spec("SRC-2")
@given(st.data())
def test_no_rule_speaks_of_what_nobody_measured(data: st.DataObject) -> None:
    """Whatever is missing, a rule whose number it is stays silent; and none ever breaks."""
    summary = _BUSY
    values: dict[str, float | None] = {each.value: data.draw(_VALUES) for each in Use}
    summary = having(summary, **values)
    cards = tuple(
        GpuUse(node="n1", gpu_uuid=f"GPU-{index}", utilization_peak=data.draw(_VALUES))
        for index in range(data.draw(st.integers(0, 4)))
    )
    summary = replace(summary, per_gpu=cards, per_node=())
    found = rules(summary)
    if values["memory_peak"] is None:
        assert not {"memory_too_much", "memory_tight"} & set(found)
    if values["cpu_efficiency"] is None or values["cpu_peak_cores"] is None:
        assert "cpus_idle" not in found
    if values["gpu_utilization"] is None:
        assert "gpus_low" not in found
    if len([each for each in cards if each.utilization_peak is not None]) < 4:
        assert "gpus_idle" not in found
    for each in found.values():
        assert each.words.endswith((".", "when."))
        assert each.flag == "" or each.flag.startswith("--")
        assert "nan" not in each.words


def _busy() -> RunSummary:
    import asyncio

    return asyncio.run(whole())


_BUSY = _busy()


@pytest.mark.spec("TOP-5")
def test_the_largest_task_is_no_node() -> None:
    task = Figure(
        name=Use.MEMORY_PEAK,
        unit="bytes",
        value=float(GIB),
        source="slurm_accounting",
        of=LARGEST_TASK,
    )
    used = tuple(task if each.name == Use.MEMORY_PEAK else each for each in _BUSY.used)
    assert "memory_too_much" not in rules(replace(_BUSY, used=used))
