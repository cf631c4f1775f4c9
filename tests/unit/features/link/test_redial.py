"""Whom an agent dials, and when: spread out in space and in time."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.features.link.node.redial import (
    LONGEST_S,
    PATIENCE_S,
    STANDBY_PATIENCE_S,
    Redial,
    preference,
)

REPLICAS = [f"10.0.0.{number}:50052" for number in range(1, 5)]


def test_links_are_spread_evenly_and_so_are_those_of_a_replica_that_dies() -> None:
    orders = [preference(f"n{number}", REPLICAS) for number in range(4000)]
    first = Counter(order[0] for order in orders)
    assert all(850 < count < 1150 for count in first.values()), first
    second = Counter(order[1] for order in orders if order[0] == REPLICAS[0])
    assert set(second) == set(REPLICAS[1:])
    assert all(count > 250 for count in second.values()), second


def test_the_order_does_not_depend_on_how_they_are_written_down() -> None:
    assert preference("n1", REPLICAS) == preference("n1", [*reversed(REPLICAS), REPLICAS[0]])


def test_the_one_just_lost_comes_last() -> None:
    redial = Redial("n1", REPLICAS, Random(1))
    best = redial.round()[0]
    redial.lost(best)
    assert redial.round()[-1] == best
    redial.nobody()
    assert redial.round()[0] == best


def test_those_lost_one_after_the_other_come_last_until_one_has_the_link() -> None:
    redial = Redial("n1", REPLICAS, Random(1))
    first, second, third, fourth = redial.round()
    redial.lost(first)
    redial.lost(second)
    assert redial.round() == [third, fourth, first, second]
    redial.lost(first)
    assert redial.round() == [third, fourth, second, first]
    redial.linked(second)
    assert redial.round() == [second, third, fourth, first]
    redial.lost("10.9.9.9:50052")
    assert redial.round() == [second, third, fourth, first]


def test_a_standby_is_left_soon_only_while_another_replica_can_be_tried() -> None:
    redial = Redial("n1", REPLICAS[:3], Random(1))
    first, second, third = redial.round()
    redial.lost(first)
    assert redial.standby_patience_s(second) == STANDBY_PATIENCE_S
    redial.lost(third)
    assert redial.standby_patience_s(second) == redial.patience_s == PATIENCE_S


def test_thousands_use_their_standby_within_a_fifth_of_a_second_and_make_it_within_twenty() -> None:
    redial = Redial("n1", REPLICAS, Random(1))
    waits = [redial.standby_wait_s() for _ in range(1000)]
    assert 0 <= min(waits) < 0.01
    assert 0.19 < max(waits) <= 0.2
    delays = [redial.standby_delay_s() for _ in range(1000)]
    assert 0 <= min(delays) < 1
    assert 19 < max(delays) <= 20


def test_servers_may_be_away_for_days() -> None:
    redial = Redial("n1", REPLICAS, Random(1))
    for _ in range(5000):
        redial.nobody()
    assert redial.wait_s() <= LONGEST_S
    assert redial.patience_s == LONGEST_S


def test_what_a_replica_tells_is_dialled_too() -> None:
    redial = Redial("n1", ["a:1"], Random(1))
    redial.set_replicas(["b:1", "c:1"])
    assert set(redial.round()) == {"a:1", "b:1", "c:1"}
    assert set(redial.others("b:1")) == {"a:1", "c:1"}


@given(st.integers(0, 20), st.integers())
def test_waits_grow_and_stay_bounded_and_differ(fruitless: int, seed: int) -> None:
    redial = Redial("n1", REPLICAS, Random(seed))
    for _ in range(fruitless):
        redial.nobody()
    waits = [redial.wait_s() for _ in range(20)]
    assert all(0 <= wait <= LONGEST_S for wait in waits)
    assert len(set(waits)) > 10, "thousands must not dial at the same moment"
    assert PATIENCE_S <= redial.patience_s <= LONGEST_S
    redial.linked(REPLICAS[0])
    assert redial.wait_s() <= 1.0


def test_nobody_to_dial_is_said() -> None:
    with pytest.raises(ValueError, match="no server"):
        Redial("n1", [], Random(1))


def test_replicas_that_were_tried_in_vain_are_tried_ever_more_seldom() -> None:
    redial = Redial("n1", ["a:1", "b:1"], Random(1))
    waits = [15.0]
    for _ in range(8):
        waits.append(redial.scout_s(waits[-1], 300.0))
    assert all(after >= 1.5 * before or after == 300.0 for before, after in pairwise(waits))
    assert waits[-1] == 300.0
