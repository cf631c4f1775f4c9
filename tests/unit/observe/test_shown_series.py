"""One number for everybody: what is asked for a shown metric is the same text, whoever asks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import SHOWN, Making, Shown
from lattice.features.compare.service.series import series_question
from lattice.features.diag.service.case_builder import PER_CARD_NODES, TRACED, trace_query
from lattice.features.report.service.run_meter import coarse_question, coarse_steps
from lattice.features.top.service.composer import Composer
from lattice.observe.metric_query import Either, Figured, OwnerFilter, owner_filter
from lattice.observe.shown_series import NODE, NODE_AND_GPU, shown_series
from lattice.observe.windows import RunWindow, Window, live_window, past_window
from tests.fakes.cluster import allocation

EVERY_S, LASTED_S = 30.0, 3600
OWNER = OwnerFilter((("alloc", "1"), ("attempt", "1"), ("user", "alice")))
OWNED = 'alloc="1",attempt="1",user="alice"'


def job() -> tuple[JobAttempt, float]:
    """A job that has run for an hour, and the present."""
    made = allocation(1, "alice", "research", ended=None)
    assert made.started is not None
    now = made.started + timedelta(seconds=LASTED_S)
    return JobAttempt(made, attempts_of(made)[0]), now.timestamp()


def part(question: Either, figure: str) -> str:
    (found,) = (
        each.what for each in question.parts if isinstance(each, Figured) and each.figure == figure
    )
    return str(found)


def of_top(owner: OwnerFilter, metric: Shown, window: Window, by: tuple[str, ...] = ()) -> str:
    """Of top's one query; it asks for gauges together, so their name is in every group."""
    (found,) = Composer(owner, (metric,), by).history(window).parts
    assert isinstance(found, Figured)
    return str(found.what).replace(" by (__name__)", "").replace("__name__, ", "")


@pytest.mark.spec("TOP-1", "TOP-5", "COMPARE-1")
@pytest.mark.parametrize("metric", Shown)
@pytest.mark.parametrize("hours", [1, 240])
def test_of_a_step_of_the_past_top_report_and_compare_ask_the_same(
    metric: Shown, hours: int
) -> None:
    attempt, _ = job()
    run = RunWindow.of(attempt, 0.0)
    run = replace(run, end=run.begin + hours * 3600)
    steps = coarse_steps(run, EVERY_S)
    expected = str(shown_series(run.owner, metric, steps.window))
    assert part(coarse_question(steps, metric), "mean") == expected
    assert str(series_question(steps, metric)) == expected
    assert of_top(run.owner, metric, steps.window) == expected
    over = Composer(run.owner, (metric,)).over(steps.step_s, EVERY_S, run.length_s)
    if SHOWN[metric].making is not Making.RATE:
        assert part(over, metric.value) == expected
    else:
        # What differs: top counts what a counter rose (`Climbs`), with no guess at the edges.
        assert f'"{metric.value}"' not in str(over)


@pytest.mark.spec("TOP-1", "DIAG-1")
@pytest.mark.parametrize("metric", TRACED)
@pytest.mark.parametrize("nodes", [1, PER_CARD_NODES + 1])
def test_of_the_newest_values_top_and_diag_ask_the_same(metric: Shown, nodes: int) -> None:
    attempt, now = job()
    by = NODE_AND_GPU if SHOWN[metric].per_gpu and nodes == 1 else NODE
    asked = part(trace_query(attempt, nodes, EVERY_S, now), metric.value)
    owner, window = owner_filter(attempt), live_window(EVERY_S, LASTED_S)
    assert asked == str(shown_series(owner, metric, window, by))
    assert asked == of_top(owner, metric, window, by)


@pytest.mark.parametrize(
    ("metric", "by", "expected"),
    [
        (
            Shown.GPU_UTILIZATION,
            (),
            "avg (max by (node, gpu_uuid) (avg_over_time(series[60s])))",
        ),
        (
            Shown.GPU_TEMPERATURE,
            NODE,
            "max by (node) (max by (node, gpu_uuid) (avg_over_time(series[60s])))",
        ),
        (
            Shown.CPU_UTILIZATION,
            (),
            "(sum (max by (node, gpu_uuid) (rate(series[75s]))) * 100)",
        ),
        (
            Shown.IO_LATENCY_P99,
            (),
            "(max (histogram_quantile(0.99, max by (node, le) (rate(series[75s])))) * 1e+06)",
        ),
        (
            Shown.GPU_POWER_DRAW,
            NODE_AND_GPU,
            "max by (node, gpu_uuid) (avg_over_time(series[60s]))",
        ),
    ],
)
def test_the_text_of_an_expression(metric: Shown, by: tuple[str, ...], expected: str) -> None:
    text = str(shown_series(OWNER, metric, past_window(60, EVERY_S), by))
    assert text.replace(f"lattice_{SHOWN[metric].series}{{{OWNED}}}", "series") == expected


@pytest.mark.parametrize("metric", Shown)
@pytest.mark.parametrize("by", [(), NODE, NODE_AND_GPU])
def test_two_sources_of_one_series_count_once(metric: Shown, by: tuple[str, ...]) -> None:
    text = str(shown_series(OWNER, metric, live_window(EVERY_S, LASTED_S), by))
    once = "node, le" if SHOWN[metric].making is Making.P99 else "node, gpu_uuid"
    made = "last_over_time" if SHOWN[metric].making is Making.LAST else "rate"
    assert f"max by ({once}) ({made}(" in text
