"""The replicas' time on a node."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.features.link.node.servertime import ServerTime
from tests.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.spec("LOG-7")


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
