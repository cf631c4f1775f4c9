"""What a figure is made of: median, interval, ratio and goal."""

from __future__ import annotations

import json

import pytest

from bench.figures import against, measured, paired, spread


def test_the_interval_holds_the_middle_half_of_the_rounds() -> None:
    assert spread([7.0, 1.0, 6.0, 2.0, 5.0, 3.0, 4.0]) == (2.0, 4.0, 6.0)
    assert spread([3.0]) == (3.0, 3.0, 3.0)


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    # The second round met a busy machine. The ratio of the medians would be 2.5.
    found = paired("x", "ms", [2.0, 40.0, 5.0], [1.0, 20.0, 2.0], at_most=2.2)
    assert (found.value, found.bare, found.ratio) == (5.0, 2.0, 2.0)
    assert (found.ratio_low, found.ratio_high) == (2.0, 2.5)
    assert found.ok is True


@pytest.mark.parametrize(
    ("goal", "ok"),
    [({"at_most": 1.9}, False), ({"at_most": 2.0}, True), ({"at_least": 2.1}, False), ({}, None)],
)
def test_a_goal_is_compared_with_the_ratio(goal: dict[str, float], ok: bool | None) -> None:
    found = paired("x", "ms", [2.0, 4.0], [1.0, 2.0], **goal)
    assert found.ok is ok
    assert found.goal == next(iter(goal.values()), None)


def test_a_figure_without_a_bare_one_has_a_goal_of_its_own_unit() -> None:
    found = measured("x", "s", [4.0, 6.0, 5.0], at_most=5.0)
    assert (found.value, found.goal, found.ok) == (5.0, 5.0, True)
    assert (found.bare, found.ratio) == (None, None)
    assert measured("x", "s", [4.0], at_least=5.0).ok is False


def test_the_ratio_of_medians_has_its_interval_in_bare_ones() -> None:
    found = against("x", "ms", [10.0, 12.0, 14.0], [2.0, 2.0, 9.0], 5.0)
    assert (found.ratio_low, found.ratio, found.ratio_high) == (5.0, 6.0, 7.0)
    assert found.ok is False


def test_a_figure_is_one_line_with_the_facts_of_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    measured("x", "s", [1.0]).print(rounds=1)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line).items() >= {"name": "x", "value": 1.0, "unit": "s", "rounds": 1}.items()
