"""Figures of many nodes as one message, and none that nobody measured."""

from __future__ import annotations

import pytest

from lattice.domain.measured import Shown
from lattice.domain.metric import MetricReading, Provenance
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.watch.model import WatchFigure
from lattice.features.watch.service.figures import WatchFigures
from tests.fakes.node_looks import CARD, OTHER_CARD, absent, card, sample, sight, snapshot


def seen(
    node: str, at: float, *readings: MetricReading, before: tuple[MetricReading, ...] = ()
) -> NodeSnapshot:
    return sight(node, snapshot(at, *readings), snapshot(at - 30, *before))


def by_metric(figures: tuple[WatchFigure, ...]) -> dict[Shown, WatchFigure]:
    return {each.metric: each for each in figures}


@pytest.mark.spec("TOP-1", "WATCH-1", "SRC-1")
def test_a_summary_is_the_mean_over_gpus_and_the_total_of_memory() -> None:
    figures = WatchFigures((Shown.GPU_UTILIZATION, Shown.GPU_MEMORY_USED), 2)
    two = (*card(30, used=90, memory=(10e9, 80e9)),)
    two += card(30, uuid=OTHER_CARD, used=60, memory=(20e9, 80e9))
    figures.take(seen("n1", 30, *two))
    figures.take(seen("n2", 30, *card(30, used=0, memory=(5e9, 80e9))))
    told = figures.drained()
    assert told is not None
    summary = by_metric(told.summary)
    assert summary[Shown.GPU_UTILIZATION].value == pytest.approx(50), "of cards, not of nodes"
    assert summary[Shown.GPU_MEMORY_USED].value == pytest.approx(35e9)
    assert (told.measured, told.node_count, told.resolution_s) == (2, 2, 30)
    assert [each.node for each in told.nodes] == ["n1", "n2"]
    assert by_metric(told.nodes[0].figures)[Shown.GPU_UTILIZATION].value == pytest.approx(75)


@pytest.mark.spec("SRC-1", "SRC-2")
def test_what_nobody_measured_has_a_reason_and_no_number() -> None:
    figures = WatchFigures((Shown.GPU_UTILIZATION, Shown.CPU_UTILIZATION), 1)
    figures.take(seen("n1", 30, absent("gpu_utilization_percent", "the driver is broken")))
    told = figures.drained()
    assert told is not None
    gpu, cpu = told.summary
    assert (gpu.value, gpu.reason) == (None, "the driver is broken")
    assert gpu.source is Provenance.UNAVAILABLE
    assert cpu.value is None
    assert cpu.reason


def test_a_metric_that_is_named_twice_is_told_once() -> None:
    figures = WatchFigures((Shown.GPU_UTILIZATION, Shown.CPU_UTILIZATION, Shown.GPU_UTILIZATION), 1)
    figures.take(seen("n1", 30, *card(30, used=90)))
    told = figures.drained()
    assert told is not None
    both = [Shown.GPU_UTILIZATION, Shown.CPU_UTILIZATION]
    assert [each.metric for each in told.summary] == both
    assert [each.metric for each in told.nodes[0].figures] == both


@pytest.mark.spec("SRC-1", "SRC-2")
def test_a_rate_needs_two_looks() -> None:
    figures = WatchFigures((Shown.CPU_UTILIZATION,), 1)
    figures.take(sight("n1", snapshot(0, sample("cpu_seconds_total", 10, 0))))
    first = figures.drained()
    assert first is not None
    assert first.summary[0].value is None
    now, before = sample("cpu_seconds_total", 55, 30), sample("cpu_seconds_total", 10, 0)
    figures.take(seen("n1", 30, now, before=(before,)))
    second = figures.drained()
    assert second is not None
    assert second.summary[0].value == pytest.approx(150)
    assert second.summary[0].source is Provenance.HOST_LOCAL_PROBE


@pytest.mark.spec("SRC-2")
def test_the_whole_nodes_traffic_is_marked() -> None:
    figures = WatchFigures((Shown.NETWORK_TX_BYTES,), 1)
    now = sample("network_tx_bytes_total", 3000, 30, scope="node")
    before = sample("network_tx_bytes_total", 0, 0, scope="node")
    figures.take(seen("n1", 30, now, before=(before,)))
    told = figures.drained()
    assert told is not None
    assert (told.summary[0].value, told.summary[0].scope) == (100, "node")


@pytest.mark.spec("WATCH-1")
def test_a_slow_reader_is_told_the_newest_of_each_node() -> None:
    figures = WatchFigures((Shown.GPU_UTILIZATION,), 1)
    for at, used in ((30, 10), (60, 20), (90, 30)):
        figures.take(seen("n1", at, *card(at, used=used)))
    told = figures.drained()
    assert told is not None
    assert [each.value for node in told.nodes for each in node.figures] == [30]
    assert figures.drained() is None


@pytest.mark.spec("SRC-1", "SRC-2")
def test_a_node_that_does_not_answer_is_in_no_summary() -> None:
    figures = WatchFigures((Shown.GPU_UTILIZATION,), 2)
    figures.take(seen("n1", 30, *card(30, used=100)))
    figures.take(seen("n2", 30, *card(30, used=0)))
    figures.drained()
    figures.drop("n2")
    figures.take(seen("n1", 60, *card(60, used=100)))
    told = figures.drained()
    assert told is not None
    assert told.summary[0].value == pytest.approx(100)
    assert (told.measured, told.node_count) == (1, 2)


@pytest.mark.spec("WATCH-1")
def test_the_worst_is_the_worst_of_all() -> None:
    figures = WatchFigures((Shown.GPU_TEMPERATURE,), 2)
    for node, hot in (("n1", 60), ("n2", 85)):
        figures.take(seen(node, 30, sample("gpu_temperature_celsius", hot, 30, gpu_uuid=CARD)))
    told = figures.drained()
    assert told is not None
    assert told.summary[0].value == pytest.approx(85)
