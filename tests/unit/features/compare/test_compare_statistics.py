"""The laws of the statistics, by short simulations; the long one is `just soak compare`."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.statistics import student
from lattice.domain.statistics.divergence import parts_at
from lattice.domain.statistics.mean_difference import (
    LEAST_SAMPLES,
    MeanLevel,
    adjusted,
    difference,
    level_of,
    variance_of_mean,
)
from lattice.domain.statistics.track import (
    Track,
    on_grid,
    together,
    track_of,
)
from lattice.features.compare.service.metric_comparison import (
    CHANGES,
    NEVER,
    TOO_SHORT,
    steady_from,
)
from tests.unit.features.compare.runs import noise


def known(values: list[float]) -> MeanLevel:
    found = level_of(values)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("share", "df", "value"),
    [
        (0.975, 1.0, 12.7062),
        (0.975, 4.0, 2.77645),
        (0.975, 30.0, 2.04227),
        (0.8, 10.0, 0.87906),
        (0.995, 2.5, 7.3915),
        (0.975, math.inf, 1.95996),
    ],
)
def test_quantiles_are_those_of_the_tables(share: float, df: float, value: float) -> None:
    if df != 2.5:
        assert student.quantile(share, df) == pytest.approx(value, rel=1e-4)
    assert student.cdf(student.quantile(share, df), df) == pytest.approx(share, abs=1e-9)
    assert student.quantile(1 - share, df) == pytest.approx(-student.quantile(share, df))


@pytest.mark.spec("COMPARE-2")
@pytest.mark.parametrize(("phi", "count", "pairs"), [
    (0.0, 40, 200), (0.5, 40, 200), (0.9, 40, 200),
    (0.0, 120, 120), (0.5, 120, 120), (0.9, 120, 120),
    (0.0, 2880, 16), (0.5, 2880, 16), (0.9, 2880, 16),
])  # fmt: skip
def test_without_a_difference_the_interval_covers_zero(phi: float, count: int, pairs: int) -> None:
    """92 to 98 of 100, give or take what so few pairs can tell."""
    draw = random.Random(f"{phi} {count}")
    covered = 0
    for _ in range(pairs):
        runs = [[90 + each for each in noise(count, phi, draw)] for _ in range(2)]
        levels = [known(each[steady_from(each).begins :]) for each in runs]
        found = difference(*levels).absolute
        covered += found.low <= 0 <= found.high
    slack = 2.5 * math.sqrt(0.05 * 0.95 / pairs)
    assert 0.95 - 0.03 - slack <= covered / pairs <= 0.98 + slack


@pytest.mark.spec("COMPARE-2")
@pytest.mark.parametrize(("phi", "count"), [(0.0, 40), (0.5, 120), (0.9, 480)])
def test_a_drop_of_5_percent_is_found_as_often_as_was_said(phi: float, count: int) -> None:
    draw = random.Random(f"drop {phi} {count}")
    size = 4.5 / (2.8 * math.sqrt(2 * variance_of_mean(phi, count)))
    found = said = 0.0
    pairs = 120
    for _ in range(pairs):
        first = known([90 + size * each for each in noise(count, phi, draw)])
        second = known([85.5 + size * each for each in noise(count, phi, draw)])
        told = difference(first, second)
        found += told.absolute.high < 0
        said += told.power(4.5)
        assert told.power(told.smallest) == pytest.approx(0.8, abs=0.02)
    assert 0.6 < found / pairs < 0.95
    assert found / pairs == pytest.approx(said / pairs, abs=0.12)


@pytest.mark.spec("COMPARE-2")
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_a_clear_step_is_dated_to_two_samples(phi: float) -> None:
    draw = random.Random(f"step {phi}")
    near = 0
    for _ in range(60):
        at = draw.randrange(30, 90)
        first = noise(120, phi, draw)
        second = [each - 7 * (here >= at) for here, each in enumerate(noise(120, phi, draw))]
        found = parts_at(first, second)
        near += found is not None and abs(found - at) <= 2
    assert near >= 55


@pytest.mark.spec("COMPARE-2")
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_runs_that_do_not_part_are_not_said_to(phi: float) -> None:
    draw = random.Random(f"none {phi}")
    parted = sum(
        parts_at(noise(120, phi, draw), noise(120, phi, draw)) is not None for _ in range(100)
    )
    assert parted <= 6


@pytest.mark.spec("COMPARE-2")
def test_a_difference_all_the_time_is_one_from_the_first_sample_on() -> None:
    draw = random.Random(3)
    first, second = noise(200, 0.5, draw), [each + 5 for each in noise(200, 0.5, draw)]
    assert parts_at(first, second) == 0
    assert parts_at([None, None, *first[2:]], second) == 2


@pytest.mark.spec("COMPARE-2")
def test_a_single_odd_sample_is_no_parting() -> None:
    draw = random.Random(4)
    first, second = noise(200, 0.9, draw), noise(200, 0.9, draw)
    second[100] += 60.0
    assert parts_at(first, second) is None


@pytest.mark.spec("COMPARE-2")
def test_the_first_of_two_steps_is_the_parting() -> None:
    draw = random.Random(5)
    second = [
        each - (10 if here >= 150 else 5 if here >= 60 else 0)
        for here, each in enumerate(noise(200, 0.3, draw))
    ]
    found = parts_at(noise(200, 0.3, draw), second)
    assert found is not None
    assert abs(found - 60) <= 2


@pytest.mark.spec("COMPARE-2")
def test_many_questions_ask_for_more() -> None:
    """A step that one question finds is not told when it is one of a million."""
    draw = random.Random(6)
    first = noise(60, 0.0, draw)
    second = [each - 2.2 * (here >= 30) for here, each in enumerate(noise(60, 0.0, draw))]
    assert parts_at(first, second) is not None
    assert parts_at(first, second, tests=10**9) is None


@pytest.mark.spec("COMPARE-2")
def test_neighbours_that_resemble_each_other_count_for_less() -> None:
    draw = random.Random(7)
    loose, tight = known(noise(500, 0.0, draw)), known(noise(500, 0.9, draw))
    assert loose.effective > 300
    assert tight.effective < 60
    assert tight.variance > 4 * loose.variance


@pytest.mark.spec("COMPARE-2")
def test_fewer_than_eight_samples_have_no_mean() -> None:
    assert level_of([1.0] * (LEAST_SAMPLES - 1)) is None
    assert level_of([1.0, None] * (LEAST_SAMPLES - 1)) is None
    assert level_of([1.0, None] * LEAST_SAMPLES) is not None


@pytest.mark.spec("COMPARE-2")
def test_two_constants_differ_exactly() -> None:
    found = difference(known([4.0] * 10), known([5.0] * 10))
    assert (found.absolute.low, found.absolute.high, found.chance) == (1.0, 1.0, 0.0)
    assert found.percent is not None
    assert found.percent.value == pytest.approx(25.0)
    same = difference(known([4.0] * 10), known([4.0] * 10))
    assert (same.absolute.value, same.chance) == (0.0, 1.0)
    assert parts_at([4.0] * 20, [4.0] * 20) is None
    assert parts_at([4.0] * 20, [4.0] * 10 + [5.0] * 10) == 10


@pytest.mark.spec("COMPARE-2")
def test_there_are_no_percents_of_a_baseline_near_zero() -> None:
    draw = random.Random(8)
    nought = known([each - 0.01 for each in noise(100, 0.0, draw)])
    other = known([5 + each for each in noise(100, 0.0, draw)])
    assert difference(nought, other).percent is None
    assert difference(known([0.0] * 20), other).percent is None


@pytest.mark.spec("COMPARE-2")
@given(
    st.floats(1, 1e6), st.floats(0, 1e6), st.floats(0.001, 0.2), st.floats(0.001, 10),
    st.floats(1, 500), st.floats(1, 500),
)  # fmt: skip
def test_percents_leave_zero_out_where_the_absolute_does(
    first: float, second: float, doubt: float, other_doubt: float, df: float, other_df: float
) -> None:
    under = MeanLevel(first, (doubt * first) ** 2, df, 100, 50.0)
    over = MeanLevel(second, (other_doubt * first) ** 2, other_df, 100, 50.0)
    found = difference(under, over)
    if found.percent is None:
        return
    apart = abs(found.absolute.value)
    reach = found.absolute.high - found.absolute.value
    if abs(apart - reach) > 1e-6 * (apart + reach):
        assert (found.percent.low <= 0 <= found.percent.high) == (apart <= reach)
    assert found.percent.low <= found.percent.value <= found.percent.high


@pytest.mark.spec("COMPARE-2")
@given(st.lists(st.floats(0, 1), max_size=20))
def test_what_is_one_of_many_is_never_more_likely_to_be_true(chances: list[float]) -> None:
    told = adjusted(chances)
    assert all(after >= before for before, after in zip(chances, told, strict=True))
    assert sorted(range(len(told)), key=lambda each: (chances[each], told[each])) == sorted(
        range(len(told)), key=lambda each: (chances[each], each)
    ) or len(set(chances)) < len(chances)


@pytest.mark.spec("COMPARE-2")
def test_warm_up_is_left_out_and_the_rest_is_steady() -> None:
    draw = random.Random(9)
    for length in (10, 25, 40):
        run = [0.0] * length + [90 + each for each in noise(120, 0.5, draw)]
        found = steady_from(run)
        assert not found.reason
        assert abs(found.begins - length) <= 1


@pytest.mark.spec("COMPARE-2")
def test_an_odd_sample_at_the_start_does_not_end_the_warm_up() -> None:
    run = [0.0, 90.0, 0.0, 0.0, 0.0, 0.0, *([90.0, 91.0] * 30)]
    assert steady_from(run).begins == 6


@pytest.mark.spec("COMPARE-2")
def test_a_ramp_is_warm_up_until_it_is_near_its_end() -> None:
    draw = random.Random(10)
    ramp = [90 * (1 - math.exp(-at / 8)) + each for at, each in enumerate(noise(200, 0.3, draw))]
    assert 15 <= steady_from(ramp).begins <= 40


@pytest.mark.spec("COMPARE-2")
def test_it_says_when_there_is_no_steady_state() -> None:
    draw = random.Random(11)
    assert steady_from([1.0] * 10).reason == TOO_SHORT
    late = [90 - 20 * (at >= 150) + each for at, each in enumerate(noise(200, 0.3, draw))]
    assert steady_from(late).reason == CHANGES
    sooner = [90 - 20 * (at >= 120) + each for at, each in enumerate(noise(200, 0.3, draw))]
    assert steady_from(sooner).reason == NEVER


values = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=200)


@pytest.mark.spec("COMPARE-1", "SRC-2")
@given(values, st.integers(1, 60), st.integers(1, 400))
def test_on_any_grid_holes_stay_holes_and_nothing_is_made_up(
    told: list[float | None], step_s: int, wider_s: int
) -> None:
    track = Track(float(step_s), tuple(told))
    found = on_grid(track, float(wider_s))
    assert (
        found.length_s <= track.length_s or found.values == track.values or len(found.values) == 1
    )
    real = [each for each in told if each is not None]
    for each in found.values:
        if each is not None:
            assert min(real) - 1e-6 <= each <= max(real) + 1e-6
    if not real:
        assert found.measured == 0


@pytest.mark.spec("COMPARE-1")
def test_a_hole_is_where_less_than_half_was_measured() -> None:
    track = Track(30.0, (1.0, None, None, None, 2.0, 2.0, None, 4.0))
    assert on_grid(track, 120.0).values == (None, pytest.approx(8 / 3))


@pytest.mark.spec("COMPARE-1")
def test_resolutions_that_do_not_divide_meet_on_the_coarser_grid() -> None:
    fine = track_of([(at + 0.5, float(at)) for at in range(3600)], 1.0, 3600.0)
    coarse = track_of([(at * 432 + 216, 5.0) for at in range(200)], 432.0, 86400.0)
    first, second = together((fine, coarse))
    assert first.step_s == second.step_s == 432.0
    assert (len(first.values), len(second.values)) == (8, 200)
    assert first.values[0] == pytest.approx(215.5)


@pytest.mark.spec("COMPARE-1")
def test_what_is_outside_the_run_or_no_number_is_left_out() -> None:
    points = [(-5.0, 1.0), (10.0, 2.0), (40.0, math.nan), (200.0, 3.0)]
    assert track_of(points, 30.0, 90.0).values == (2.0, None, None)
