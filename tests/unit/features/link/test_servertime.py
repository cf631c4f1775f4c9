"""The replicas' time on a node."""

from __future__ import annotations

from datetime import timedelta

from lattice.features.link.node.servertime import ServerTime
from tests.fakes.manual_clock import ManualClock


def test_a_node_whose_clock_is_ahead() -> None:
    clock = ManualClock()
    measured: list[float | None] = [None]
    time = ServerTime(clock, lambda: measured[0])
    assert time.now() == clock.now(), "nothing is known yet"
    measured[0] = 90.5
    assert time.now() == clock.now() - timedelta(seconds=90.5)
    measured[0] = None
    assert time.now() == clock.now() - timedelta(seconds=90.5), "the link is away: as measured last"
    measured[0] = -2.0
    assert time.now() == clock.now() + timedelta(seconds=2)
    assert time.monotonic() == clock.monotonic()


def test_moments_go_both_ways_and_stay_as_they_were_told() -> None:
    measured: list[float | None] = [None]
    time = ServerTime(ManualClock(), lambda: measured[0])
    assert time.ahead_s is None
    assert (time.to_server_time(1000.0), time.to_node_time(1000.0)) == (1000.0, 1000.0), (
        "nothing is known yet"
    )
    measured[0] = 300.0
    assert (time.to_server_time(1000.0), time.to_node_time(2000.0)) == (700.0, 2300.0)
    measured[0] = -12.5
    # The clock was set: what has a name keeps it.
    assert (
        time.to_server_time(1000.0),
        time.to_server_time(2300.0),
        time.to_node_time(2000.0),
    ) == (700.0, 2000.0, 2300.0)
    assert time.to_server_time(5000.0) == 5012.5
    measured[0] = None
    assert time.ahead_s == -12.5
