"""When which job is read: at moments that all nodes share, each once, none made up for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.node.plan import Plan

T0 = 1_794_702_390.0
"""A multiple of 30."""


def life(job_id: int = 7) -> JobIdentity:
    return JobIdentity("b", job_id, 1, T0 - 5)


def test_a_new_job_is_read_within_two_seconds_and_then_at_the_shared_moments() -> None:
    plan = Plan(lambda _: 30.0)
    plan.appeared(life(), T0 + 3.2)
    assert plan.next(T0 + 3.2) == T0 + 4
    assert plan.due(T0 + 3.9) == {}
    assert plan.due(T0 + 4.01)[life()].moment == T0 + 4
    assert plan.next(T0 + 4.01) == T0 + 30


@pytest.mark.spec("WATCH-3")
def test_a_mode_is_in_force_at_once_in_both_directions() -> None:
    interval = [30.0]
    plan = Plan(lambda _: interval[0])
    plan.appeared(life(), T0)
    plan.due(T0 + 2)
    interval[0] = 1.0
    assert plan.next(T0 + 12.3) == T0 + 12, "a moment that is past already"
    assert plan.due(T0 + 12.3)[life()].moment == T0 + 12
    assert plan.next(T0 + 12.4) == T0 + 13
    interval[0] = 30.0
    assert plan.next(T0 + 12.5) == T0 + 30


def test_what_was_missed_is_read_once_and_late() -> None:
    plan = Plan(lambda _: 1.0)
    plan.appeared(life(), T0)
    plan.due(T0 + 1)
    assert plan.due(T0 + 600.4)[life()].moment == T0 + 600
    assert plan.next(T0 + 600.5) <= T0 + 601


def test_without_jobs_nothing_is_due() -> None:
    plan = Plan(lambda _: 30.0)
    assert plan.next(T0) == math.inf
    plan.appeared(life(), T0)
    plan.ended(life())
    assert plan.next(T0 + 2) == math.inf


@given(
    st.sampled_from([1.0, 30.0]),
    st.lists(st.floats(0.001, 70.0), min_size=1, max_size=40),
)
def test_moments_are_shared_rise_and_are_never_in_the_future(
    interval_s: float, pauses: list[float]
) -> None:
    plan, now, moments = Plan(lambda _: interval_s), T0 + 0.1, []
    plan.appeared(life(), now)
    for pause in pauses:
        now += pause
        due = plan.next(now)
        turn = plan.due(now).get(life())
        assert (turn is not None) == (due <= now)
        if turn is not None:
            moments.append(turn.moment)
            assert now - interval_s < turn.moment <= now or len(moments) == 1
    assert moments == sorted(set(moments))
    assert all(each % interval_s == 0 for each in moments[1:])


def test_the_shortest_interval_is_that_of_the_closest_look() -> None:
    plan = Plan(lambda job_id: 1.0 if job_id == 8 else 30.0)
    plan.appeared(life(), T0)
    assert plan.shortest_s == 30.0
    plan.appeared(life(8), T0)
    assert plan.shortest_s == 1.0
    plan.ended(life(8))
    assert plan.shortest_s == 30.0
