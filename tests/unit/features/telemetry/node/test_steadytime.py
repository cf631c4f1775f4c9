"""Time that goes on while clocks are set: what rates and moments are made of."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.features.telemetry.node.steadytime import SteadyTime
from tests.fakes.manual_clock import RECORDED, ManualClock

NOW = RECORDED.timestamp()


class NodeClock(ManualClock):
    def set(self, by_s: float) -> None:
        self._now += timedelta(seconds=by_s)


@pytest.fixture
def clock() -> NodeClock:
    return NodeClock()


def test_it_is_the_servers_time_where_the_nodes_clock_is_wrong(clock: NodeClock) -> None:
    time = SteadyTime(clock, lambda: 302.0)
    assert time.now() == pytest.approx(NOW - 302)
    assert time.wall_ahead_s == pytest.approx(302)
    clock.advance(7)
    assert time.now() == pytest.approx(NOW - 295)


@pytest.mark.spec("SRC-2")
def test_a_clock_that_is_set_makes_no_time_pass(clock: NodeClock) -> None:
    ahead = [0.0]
    time = SteadyTime(clock, lambda: ahead[0])
    clock.set(-300)
    assert time.now() == pytest.approx(NOW)
    clock.advance(4)
    assert time.now() == pytest.approx(NOW + 4)
    ahead[0] = -300.0  # the link has noticed
    clock.advance(60)
    assert time.now() == pytest.approx(NOW + 64)
    assert time.leaps == 0


def test_what_is_measured_for_the_first_time_is_believed_at_once(clock: NodeClock) -> None:
    ahead: list[float | None] = [None]
    heard: list[float] = []
    time = SteadyTime(clock, lambda: ahead[0])
    time.on_leap = heard.append
    assert time.now() == pytest.approx(NOW)
    ahead[0] = 302.0
    assert time.now() == pytest.approx(NOW - 302)
    assert heard == [pytest.approx(-302)]
    assert time.leaps == 1


def test_a_difference_that_stays_is_believed_in_the_end(clock: NodeClock) -> None:
    ahead = [0.0]
    time = SteadyTime(clock, lambda: ahead[0])
    ahead[0] = 50.0
    assert time.now() == pytest.approx(NOW)
    clock.advance(11)
    assert time.now() == pytest.approx(NOW + 11)
    clock.advance(2)
    assert time.now() == pytest.approx(NOW + 13 - 50)
    assert time.leaps == 1


def test_small_differences_are_made_up_for_slowly(clock: NodeClock) -> None:
    ahead = [0.0]
    time = SteadyTime(clock, lambda: ahead[0])
    ahead[0] = 0.5
    passed = []
    for _ in range(400):
        before = time.now()
        clock.advance(1)
        passed.append(time.now() - before)
    assert min(passed) >= 0.997
    assert time.wall_ahead_s == pytest.approx(0.5)
    assert time.leaps == 0
