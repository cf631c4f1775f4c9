"""The means of counters: what was counted between two samples, or else the store's own rate.

What real stores answer is tried in tests/contract/test_metric_store.py.
"""

from __future__ import annotations

import math

import pytest

from lattice.domain.measured import SHOWN, Making, Shown
from lattice.domain.metricstore import SeriesPoints
from lattice.features.top.service.composer import Climbs, of_all
from lattice.observe.metric_query import OwnerFilter

OWNER = OwnerFilter((("alloc", "1"), ("attempt", "1"), ("user", "alice")))
CPU = Shown.CPU_UTILIZATION
CLIMBS = Climbs(OWNER, (CPU, Shown.MEMORY_USED))
WHOLE = {
    "lasted": 600.0,
    "often": 21.0,
    "risen_cpu_utilization": 900.0,
    "rate_cpu_utilization": 1.4,
    "resets_cpu_utilization": 0.0,
    "samples_cpu_utilization": 21.0,
}


def told(node: str = "n1", **changes: float) -> list[SeriesPoints]:
    return [
        SeriesPoints({"figure": figure, "node": node}, ((1.0, value),))
        for figure, value in (WHOLE | changes).items()
        if not math.isinf(value)
    ]


@pytest.mark.spec("SRC-2")
def test_it_is_what_was_counted_and_no_guess() -> None:
    assert CLIMBS.means(told()) == {(CPU, "n1"): 150.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"resets_cpu_utilization": 1.0},
        {"samples_cpu_utilization": 20.0},
        {"lasted": 0.0},
        {"lasted": math.inf, "often": math.inf},
        {"risen_cpu_utilization": math.nan},
    ],
    ids=["begun anew", "not as often", "no time", "no clock", "no number"],
)
def test_where_that_can_not_be_told_it_is_a_rate(changes: dict[str, float]) -> None:
    assert CLIMBS.means(told(**changes)) == {(CPU, "n1"): 140.0}


@pytest.mark.spec("SRC-2")
def test_of_what_was_not_measured_there_is_none() -> None:
    assert CLIMBS.means([]) == {}
    lacking = dict.fromkeys((each for each in WHOLE if "cpu" in each), math.inf)
    assert CLIMBS.means(told(**lacking)) == {}
    assert of_all(CPU, {}) is None


def test_the_whole_is_of_all_nodes() -> None:
    means = CLIMBS.means([*told("n1"), *told("n2", risen_cpu_utilization=300.0)])
    assert of_all(CPU, means) == pytest.approx(200.0)
    assert of_all(Shown.MEMORY_USED, means) is None


def test_who_has_no_counter_asks_nothing() -> None:
    gauges = tuple(each for each in Shown if SHOWN[each].making is Making.LAST)
    assert Climbs(OWNER, gauges).query(2e9, 600, 30.0) is None
