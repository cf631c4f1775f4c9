"""Lengths of time: windows that hold enough samples, and steps that are not too many."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.observe.metric_query import Over, OwnerFilter
from lattice.observe.windows import RunWindow, Window, fresh_s, live_window, past_window, step_s

OWNER = OwnerFilter((("alloc", "1"), ("attempt", "1"), ("user", "alice")))


@given(st.floats(0.05, 7200), st.floats(1, 1e8))
def test_windows_fit_the_resolution(interval_s: float, lasted_s: float) -> None:
    window = live_window(interval_s, lasted_s)
    assert window.gauge_s == fresh_s(interval_s) >= 2.5 * interval_s
    assert window.rate_s >= min(4 * interval_s, max(lasted_s, window.gauge_s))


@pytest.mark.parametrize(
    ("window", "gauge_s", "rate_s"),
    [
        (live_window(30.0, 3600.0), 80, 125),
        (live_window(30.0, 100.0), 80, 100),
        (live_window(30.0, 20.0), 80, 80),
        (live_window(1.0, 3600.0), 8, 9),
        (live_window(1.0, 3600.0, 30), 30, 30),
    ],
    ids=["usual", "young", "just begun", "closely", "in steps"],
)
def test_the_newest_values_are_of_a_few_samples(window: Window, gauge_s: int, rate_s: int) -> None:
    assert window == Window(Over.LAST, gauge_s, rate_s)


@pytest.mark.parametrize(("step", "rate_s"), [(30, 75), (60, 75), (300, 300)])
def test_a_step_of_the_past_has_two_samples_at_least(step: int, rate_s: int) -> None:
    assert past_window(step, 30.0) == Window(Over.MEAN, step, rate_s)


@given(st.integers(1, 10**8), st.floats(0.1, 3600), st.integers(1, 3000))
def test_there_are_never_more_steps_than_allowed(
    length_s: int, interval_s: float, most: int
) -> None:
    step = step_s(length_s, interval_s, most)
    assert length_s / step <= most
    assert step == 1 or step - 1 < max(interval_s, length_s / most)


@given(st.floats(0, 1e7), st.floats(0.1, 3600), st.integers(1, 3000))
def test_steps_stand_inside_their_run(length_s: float, interval_s: float, most: int) -> None:
    run = RunWindow(OWNER, 1e9, 1e9 + max(1.0, length_s))
    steps = run.steps(interval_s, most)
    assert 1 <= steps.count <= most
    assert steps.first - run.begin == steps.step_s
    assert steps.last - run.begin == steps.count * steps.step_s
    assert steps.last <= max(run.end, steps.first)


def test_a_run_without_samples_has_the_usual_interval() -> None:
    assert RunWindow(OWNER, 1e9, 1e9 + 3600).interval_s([]) == 30.0


def test_the_middle_node_decides_how_closely_a_run_was_measured() -> None:
    run = RunWindow(OWNER, 1e9, 1e9 + 3600)
    assert run.interval_s([3600, 3600, 10]) == 1.0
    assert run.interval_s([3600, 120, 120]) == 30.0
    assert math.isclose(run.interval_s([1], {5.0, 10.0}), 10.0)
