"""Runs laid upon each other from their own starts: of any length, resolution, age and place.

Every series is simulated with a known truth, and the whole way is gone: from what the metric store
is asked to what is told.
"""

from __future__ import annotations

import math
import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.statistics.sureness import Sureness
from lattice.domain.statistics.track import Track, on_grid, together, track_of
from lattice.features.compare.model import Comparison, MetricComparison
from lattice.features.compare.service.series import MOST_SAMPLES
from tests.unit.features.compare.runs import CPU, Course, Site, course, noise

METRIC = "gpu_utilization"
HOUR = 3600.0


def row(answer: Comparison, metric: str = METRIC) -> MetricComparison:
    return next(each for each in answer.metrics if each.metric == metric)


def fine(level: float, *, seed: int, step_s: float, **more: float) -> Course:
    """As `course`, with noise that changes every `step_s` and keeps a half over 30 s."""
    wave = noise(30_000, 0.5 ** (step_s / 30), random.Random(seed))
    after_s, then = more.get("after_s", math.inf), more.get("then", level)
    return lambda at_s: (then if at_s >= after_s else level) + wave[int(at_s // step_s)]


# A day against an hour.


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
@pytest.mark.parametrize("day", [41, 42])
async def test_a_day_and_an_hour_part_where_both_still_run(day: int) -> None:
    site = Site()
    site.job(41, hours=24 if day == 41 else 1)
    site.job(42, hours=24 if day == 42 else 1)
    site.measure(41, course(90, seed=1))
    site.measure(42, course(90, seed=2, after_s=1800, then=80))
    told = row(await site.compare())
    (one,) = told.differences
    assert {line.label: len(line.points) for line in told.lines} == {"A": 120, "B": 120}
    assert sorted(round(line.step_s) for line in told.lines) == [30, 720]
    assert one.parting is not None
    assert abs(one.parting.at_s - 1800) <= 60
    assert one.parting.since is not None
    assert one.parting.since.percent == pytest.approx(-11.1, abs=1.5)


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_what_a_day_does_after_the_hour_is_no_parting_from_it() -> None:
    site = Site()
    site.job(41, hours=24)
    site.measure(41, course(90, seed=1, after_s=20 * HOUR, then=60))
    site.measure(42, course(90, seed=2))
    told = row(await site.compare())
    (one,) = told.differences
    assert one.parting is None
    assert told.levels[0].unsteady
    drawn = {line.label: line.points[-1].at_s for line in told.lines}
    assert drawn["A"] > 23 * HOUR
    assert drawn["B"] < HOUR


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_a_week_is_asked_for_no_finer_than_can_be_kept_and_still_meets_an_hour() -> None:
    site = Site()
    site.job(41, hours=24 * 7)
    site.measure(41, course(90, seed=1))
    site.measure(42, course(79, seed=2))
    answer = await site.compare()
    told = row(answer)
    assert answer.runs[0].origin.resolution_s == 210
    assert told.levels[0].samples <= MOST_SAMPLES
    (one,) = told.differences
    assert one.sureness is Sureness.SURE
    assert one.change is not None
    assert one.change.percent == pytest.approx(-12.2, abs=1.0)
    assert any("told to 210 s" in each for each in answer.notes)


# Running against finished.


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_a_running_one_is_compared_for_as_long_as_it_has_run() -> None:
    """What is told of it at any time is what was measured until then, and no more."""
    site = Site()
    site.job(42, hours=0.5, runs=True)
    site.measure(41, course(90, seed=1))
    site.measure(42, course(90, seed=2, after_s=2700, then=70))
    early = await site.compare()
    assert row(early).levels[1].samples == 60
    assert row(early).differences[0].parting is None
    assert early.runs[1].length_s == pytest.approx(1800)
    site.clock.advance(1800 + 15)
    late = await site.compare()
    (one,) = row(late).differences
    assert late.runs[1].ended is None
    assert row(late).lines[1].points[-1].at_s < late.runs[1].length_s
    assert one.parting is not None
    assert abs(one.parting.at_s - 2700) <= 60
    before = [(each.at_s, each.value) for each in row(early).lines[1].points]
    after = [(each.at_s, each.value) for each in row(late).lines[1].points]
    assert after[: len(before)] == before


@pytest.mark.spec("COMPARE-1")
async def test_the_stretch_under_way_is_not_measured_yet() -> None:
    site = Site()
    site.job(42, hours=0.5, runs=True)
    site.measure(41, course(90, seed=1))
    site.measure(42, course(90, seed=2))
    whole = row(await site.compare()).levels[1].samples
    site.clock.advance(29)
    assert row(await site.compare()).levels[1].samples == whole
    site.clock.advance(1)
    assert row(await site.compare()).levels[1].samples == whole + 1


@pytest.mark.spec("COMPARE-1")
async def test_which_of_them_runs_makes_no_difference() -> None:
    """The same numbers, finished or under way."""
    told = []
    for runs in (False, True):
        site = Site()
        site.job(42, runs=runs)
        site.measure(41, course(90, seed=1))
        site.measure(42, course(79, seed=2))
        told.append(row(await site.compare()))
    assert told[0] == told[1]


# Starts.


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
@pytest.mark.parametrize("later_s", [0.0, 1.0, 13.5, 29.0, 86_399.0])
async def test_when_a_run_began_makes_no_difference(later_s: float) -> None:
    """Second 0 is each run's own, wherever it lies between two samples or days."""
    site = Site()
    site.measure(41, course(90, seed=1))
    site.measure(42, course(90, seed=2, after_s=900, then=80))
    usual = row(await site.compare())
    begun = site.clock.now() - timedelta(days=3) + timedelta(seconds=later_s)
    site.job(42, submitted=begun, started=begun, ended=begun + timedelta(hours=1))
    site.begun["42"] = begun.timestamp()
    moved = row(await site.compare())
    assert moved.levels[1].samples == usual.levels[1].samples
    assert moved.levels[1].mean == pytest.approx(usual.levels[1].mean or 0.0, rel=1e-3)
    first, second = usual.differences[0].parting, moved.differences[0].parting
    assert first is not None
    assert second is not None
    assert abs(first.at_s - second.at_s) <= 30


# Resolutions.


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
@pytest.mark.parametrize(("interval_s", "other_s"), [(30.0, 2.0), (2.0, 30.0), (30.0, 7.0)])
async def test_unequal_resolutions_part_to_the_coarser(interval_s: float, other_s: float) -> None:
    site = Site()
    site.store.intervals = {"41": interval_s, "42": other_s}
    site.measure(41, fine(90, seed=1, step_s=interval_s))
    site.measure(42, fine(90, seed=2, step_s=other_s, after_s=1500, then=75))
    answer = await site.compare()
    steps = [each.origin.resolution_s for each in answer.runs]
    assert steps == [math.ceil(interval_s), math.ceil(other_s)]
    (one,) = row(answer).differences
    assert one.parting is not None
    assert abs(one.parting.at_s - 1500) <= 2 * max(interval_s, other_s)
    assert any("different resolutions" in each for each in answer.notes)


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_the_same_run_at_two_resolutions_does_not_differ() -> None:
    site = Site()
    site.store.intervals = {"41": 30.0, "42": 5.0}
    wave = noise(720, 0.98, random.Random(3))

    def fine_one(at_s: float) -> float:
        return 80 + 3 * wave[int(at_s // 5)]

    def coarse_one(at_s: float) -> float:
        begin = int(at_s // 30) * 6
        return 80 + 3 * math.fsum(wave[begin : begin + 6]) / 6

    site.measure(41, coarse_one)
    site.measure(42, fine_one)
    (one,) = row(await site.compare()).differences
    assert one.change is not None
    assert abs(one.change.absolute) < 0.2
    assert one.sureness is Sureness.NONE_FOUND
    assert one.parting is None


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_a_kept_summary_meets_a_running_one_on_its_own_grid() -> None:
    site = Site()
    site.job(41, hours=24)
    site.job(42, hours=2, runs=True)
    site.measure(42, course(80, seed=2))
    wave = noise(200, 0.2, random.Random(4))
    await site.keep(41, METRIC, [90 + each for each in wave], 432.0)
    answer = await site.compare()
    assert [each.origin.resolution_s for each in answer.runs] == [432.0, 30.0]
    (one,) = row(answer).differences
    assert one.sureness is Sureness.SURE
    assert one.parting is not None
    assert one.parting.whole


# Places.


@pytest.mark.spec("COMPARE-2", "COMPARE-4")
async def test_other_nodes_and_more_of_them_are_compared_and_said() -> None:
    site = Site()
    site.job(41, nodes="n[1-2]", node_count=2)
    site.job(42, nodes="n[5-8]", node_count=4)
    for number, level in ((41, 90), (42, 90)):
        site.measure(number, course(level, seed=number))
    site.measure(41, course(800, seed=3), CPU)
    site.measure(42, course(1600, seed=4), CPU)
    answer = await site.compare()
    assert row(answer).differences[0].sureness is not Sureness.SURE
    (cores,) = row(answer, "cpu_utilization").differences
    assert cores.change is not None
    assert cores.change.percent == pytest.approx(100, abs=2)
    assert any("(A 2, B 4)" in each for each in answer.notes)
    nodes = next(each for each in answer.settings if each.name == "nodes")
    assert [each.value for each in nodes.values] == ["n[1-2]", "n[5-8]"]
    assert nodes.differs


# Laws.

CELLS = st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=1, max_size=120)


@pytest.mark.spec("COMPARE-1")
@given(CELLS, CELLS, st.sampled_from([1.0, 5.0, 7.0, 30.0]), st.sampled_from([1.0, 30.0, 432.0]))
def test_aligned_cells_are_of_the_same_time_and_lengths_stay_their_own(
    first: list[float | None], second: list[float | None], step_s: float, other_s: float
) -> None:
    tracks = (Track(step_s, tuple(first)), Track(other_s, tuple(second)))
    aligned = together(tracks)
    coarsest = max(step_s, other_s)
    for before, after in zip(tracks, aligned, strict=True):
        assert after.step_s == coarsest
        assert len(after.values) == max(1, int(before.length_s / coarsest + 1e-9))


@pytest.mark.spec("COMPARE-1")
@given(st.floats(0, 1e6), st.integers(1, 200), st.sampled_from([1.0, 2.0, 30.0]))
def test_moving_a_run_moves_nothing(begin: float, count: int, step_s: float) -> None:
    """Points since the start are the same points, wherever the start is on the clock."""
    moments = [begin + (at + 0.5) * step_s for at in range(count)]
    points = [(each - begin, float(at)) for at, each in enumerate(moments)]
    track = track_of(points, step_s, count * step_s)
    assert track.values == tuple(map(float, range(count)))


@pytest.mark.spec("COMPARE-1")
@given(st.integers(2, 60), st.integers(1, 40))
def test_a_constant_stays_what_it_is_on_every_grid(factor: int, count: int) -> None:
    track = Track(1.0, (42.0,) * (factor * count))
    assert set(on_grid(track, float(factor)).values) == {42.0}
