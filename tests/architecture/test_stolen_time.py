"""What counts as a machine that was not given its processors."""

from __future__ import annotations

from tests.stolen_time import stolen_share

#                 user nice system idle waiting irq softirq stolen
BEFORE = [100, 0, 100, 1000, 50, 0, 0, 10]


def test_the_share_is_of_what_was_asked_for() -> None:
    after = [160, 0, 120, 5000, 90, 0, 0, 30]
    assert stolen_share(BEFORE, after) == 20 / 100


def test_a_machine_that_did_nothing_was_not_robbed() -> None:
    assert stolen_share(BEFORE, [*BEFORE[:3], 4000, *BEFORE[4:]]) == 0.0
