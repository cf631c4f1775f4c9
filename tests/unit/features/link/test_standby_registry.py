"""How a replica counts the connections that nodes keep ready."""

from __future__ import annotations

import pytest

from lattice.base.errors import RateLimited
from lattice.features.link.service.standby import MOST_STANDBY, StandbyRegistry
from tests.fakes.manual_clock import ManualClock


def test_a_connection_counts_as_long_as_it_calls() -> None:
    clock = ManualClock()
    registry = StandbyRegistry(clock)
    registry.note("n1", "ipv4:10.0.0.1:4000")
    registry.note("n2", "ipv4:10.0.0.2:4000")
    for _ in range(5):
        clock.advance(140)
        registry.note("n1", "ipv4:10.0.0.1:4000")
    assert registry.open == 1
    clock.advance(301)
    assert registry.open == 0


@pytest.mark.spec("LIMIT-4")
def test_a_node_has_a_bounded_number_of_them() -> None:
    clock = ManualClock()
    registry = StandbyRegistry(clock)
    for number in range(MOST_STANDBY):
        registry.note("n1", f"ipv4:10.0.0.1:{number}")
    with pytest.raises(RateLimited, match="n1 has 2 connections ready here"):
        registry.note("n1", "ipv4:10.0.0.1:9")
    registry.note("n1", "ipv4:10.0.0.1:0")
    registry.note("n2", "ipv4:10.0.0.2:0")
    assert registry.open == MOST_STANDBY + 1
    clock.advance(301)
    registry.note("n1", "ipv4:10.0.0.1:9")
    assert registry.open == 1


def test_a_node_that_links_or_loses_its_trust_is_forgotten() -> None:
    registry = StandbyRegistry(ManualClock())
    registry.note("n1", "ipv4:10.0.0.1:1")
    registry.forget("n1")
    registry.forget("n9")
    assert registry.open == 0
