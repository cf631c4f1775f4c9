"""The kernel's histogram, folded into few buckets: nothing is lost, nothing is made up."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.latency import (
    EDGES,
    SLOTS,
    JobTiming,
    cumulative,
    timing_row,
    timings_of,
    upper_edge_s,
)

COUNTS = st.lists(st.integers(0, 2**40), min_size=SLOTS, max_size=SLOTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=60),
    max_leaves=80,
)


@pytest.mark.spec("SRC-2")
def test_what_is_no_histogram_has_no_buckets() -> None:
    for wrong in ([], [1] * (SLOTS - 1), [-1] + [0] * (SLOTS - 1), [True] + [0] * (SLOTS - 1)):
        with pytest.raises(ValueError, match="histogram"):
            cumulative(wrong)


@pytest.mark.spec("SRC-2")
@given(JSON)
def test_of_a_row_that_is_none_comes_no_number(raw: Any) -> None:
    rows = raw if isinstance(raw, list) else [raw]
    try:
        found = timings_of(rows)
    except ValueError:
        return
    for row, timing in zip(rows, found, strict=True):
        assert timing is None or timing_row(timing)[4:] == row[4:]
        assert (timing is None) == (len(row) == 1)


@given(COUNTS, st.integers(0, 2**60), st.booleans())
def test_a_row_is_read_as_it_was_written(slots: list[int], figure: int, of_node: bool) -> None:
    timing = JobTiming(
        inode=figure, slots=tuple(slots), retransmits=figure, of_node=of_node, lost=figure
    )
    assert timings_of([timing_row(timing)]) == [timing]


def test_edges_are_few_short_and_in_order() -> None:
    edges = [float(each) for each in EDGES]
    assert edges == sorted(set(edges))
    assert EDGES[-1] == "+Inf"
    assert len(EDGES) <= 16
    assert {"0.001", "0.002", "0.004", "0.512", "1.024"} <= set(EDGES)
    assert max(map(len, EDGES)) <= 9


def test_around_a_millisecond_to_a_second_an_edge_is_twice_the_one_before() -> None:
    edges = [float(each) for each in EDGES if 0.001 <= float(each) <= 1.1]
    assert [later / edge for edge, later in itertools.pairwise(edges)] == [2.0] * 10


def test_slots_are_halves_of_powers_of_two() -> None:
    edges = [upper_edge_s(each) for each in range(SLOTS)]
    assert edges[0] == pytest.approx(0.98e-6, rel=0.01)
    assert edges[-2] == 65.536
    assert math.isinf(edges[-1])
    for slot in range(1, SLOTS - 1):
        assert edges[slot] / edges[slot - 1] == pytest.approx(1.5 if slot % 2 else 4 / 3)


@given(COUNTS)
def test_buckets_never_fall_and_the_last_has_all(slots: list[int]) -> None:
    counts = [count for _, count in cumulative(slots)]
    assert counts == sorted(counts)
    assert counts[-1] == sum(slots)


@given(st.integers(0, SLOTS - 1))
def test_a_call_is_in_every_bucket_whose_edge_it_can_t_be_beyond(slot: int) -> None:
    slots = [int(each == slot) for each in range(SLOTS)]
    for edge, count in cumulative(slots):
        assert count == int(upper_edge_s(slot) <= float(edge))
