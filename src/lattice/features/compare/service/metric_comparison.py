"""Turns the statistics of each metric into an answer. Pure.

It also finds the end of a run's warm-up, and whether the level stays the same after it. The second
half of a run defines the normal range: its median and the spread around it. The warm-up ends at the
first window inside that range. Medians keep a single outlier from ending a warm-up or widening the
range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from lattice.domain.measured import SHOWN, Shown
from lattice.domain.statistics.divergence import first_step, parts_at
from lattice.domain.statistics.mean_difference import (
    LEAST_SAMPLES,
    Difference,
    MeanLevel,
    adjusted,
    difference,
    level_of,
)
from lattice.domain.statistics.sureness import sureness_of
from lattice.domain.statistics.track import Track, on_grid, together
from lattice.features.compare.model import (
    PLOT_POINTS,
    Change,
    ComparePoint,
    FirstParting,
    MetricComparison,
    Parting,
    RunDifference,
    RunLevel,
    RunLine,
)
from lattice.features.compare.verdict import change_of

_LEAST = 2 * LEAST_SAMPLES
_FAR, _NEAR = 4.0, 2.5
"""In units of the spread: a run that starts within the first has no warm-up. Otherwise the warm-up
ends within the second.
"""
_FEW = 40
"""Few correlated samples underestimate the spread, so a short run has a wider limit."""
_STRETCH = 5
_CHANGED = 0.001
"""It is checked for every metric of every run, and a false alarm is a misleading note."""
TOO_SHORT = "too short to tell a warm-up from the rest"
NEVER = "the first half never comes to where the second is"
CHANGES = "its level changes on the way"


@dataclass(frozen=True, slots=True)
class Steady:
    """The first sample of the steady state; `reason` is set if there is none."""

    begins: int
    reason: str = ""


def steady_from(values: Sequence[float | None]) -> Steady:
    """Find the steady state of evenly spaced samples."""
    measured = [(at, each) for at, each in enumerate(values) if each is not None]
    if len(measured) < _LEAST:
        return Steady(0, TOO_SHORT)
    half = len(measured) // 2
    centre, spread = _usual([each for _, each in measured[half:]])
    begins = _entered([each for _, each in measured], half, centre, spread)
    if begins is None:
        return Steady(0, NEVER)
    if first_step([each for _, each in measured[begins:]], _CHANGED) is not None:
        return Steady(measured[begins][0], CHANGES)
    return Steady(measured[begins][0])


def _usual(values: Sequence[float]) -> tuple[float, float]:
    centre = median(values)
    apart = [abs(each - centre) for each in values]
    # If more than half are equal, the others still define the spread.
    spread = 1.4826 * median(apart) or 1.2533 * fmean(apart)
    return centre, spread + 1e-9 * abs(centre)


def _entered(values: Sequence[float], half: int, centre: float, spread: float) -> int | None:
    far = _FAR * (1.0 + _FEW / len(values))
    if abs(median(values[:_STRETCH]) - centre) <= far * spread:
        return 0
    width = _NEAR * spread
    for at in range(half):
        if abs(median(values[at : at + _STRETCH]) - centre) <= width:
            while abs(values[at] - centre) > width:
                at += 1  # noqa: PLW2901 - the stretch is in, its first samples may not be
            return at
    return None


NOT_MEASURED = "not measured in this run"
_TOGETHER = 2
"""Metrics that diverge within this many samples of the first count as simultaneous."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One metric of one run."""

    metric: Shown
    track: Track | None
    steady: Steady
    level: MeanLevel | None


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The data of a run: its label, its tracks, and why tracks are missing."""

    label: str
    tracks: Mapping[Shown, Track]
    reason: str = ""
    reasons: Mapping[Shown, str] = field(default_factory=dict)

    def lacks(self, metric: Shown) -> str:
        """Return why a metric is missing."""
        return self.reasons.get(metric) or self.reason or NOT_MEASURED


def compared(
    runs: Sequence[KnownRun], metrics: Sequence[Shown]
) -> tuple[tuple[MetricComparison, ...], tuple[FirstParting, ...]]:
    """Compare every metric of each run with the first, and find what diverged first."""
    seen = {metric: [_seen(metric, each) for each in runs] for metric in metrics}
    pairs = [(metric, at) for metric in metrics for at in range(1, len(runs))]
    found = {pair: _difference(seen[pair[0]][0], seen[pair[0]][pair[1]]) for pair in pairs}
    known = [pair for pair in pairs if found[pair] is not None]
    chances = adjusted([each.chance for pair in known if (each := found[pair]) is not None])
    sure = dict(zip(known, chances, strict=True))
    comparisons = []
    for metric in metrics:
        row = seen[metric]
        differences = tuple(
            _run_difference(runs, row, at, found[metric, at], sure.get((metric, at)), len(known))
            for at in range(1, len(runs))
        )
        comparisons.append(
            MetricComparison(
                metric=metric,
                unit=SHOWN[metric].unit,
                levels=tuple(map(_level, row, runs)),
                differences=differences,
                lines=tuple(map(_line, row, runs)),
            )
        )
    steps = {
        metric: max((each.track.step_s for each in row if each.track is not None), default=0.0)
        for metric, row in seen.items()
    }
    return tuple(comparisons), _first_partings(runs, comparisons, steps)


def _seen(metric: Shown, run: KnownRun) -> _Seen:
    track = run.tracks.get(metric)
    if track is None:
        return _Seen(metric, None, Steady(0, NOT_MEASURED), None)
    steady = steady_from(track.values)
    return _Seen(metric, track, steady, level_of(track.values[steady.begins :]))


def _difference(baseline: _Seen, other: _Seen) -> Difference | None:
    if baseline.level is None or other.level is None:
        return None
    return difference(baseline.level, other.level)


def _level(seen: _Seen, run: KnownRun) -> RunLevel:
    track, level = seen.track, seen.level
    if track is None:
        return RunLevel(reason=run.lacks(seen.metric))
    if level is None:
        reason = f"{track.measured} samples are too few for a mean: it takes {LEAST_SAMPLES}"
        return RunLevel(reason=reason, samples=track.measured)
    return RunLevel(
        mean=level.mean,
        warm_up_s=seen.steady.begins * track.step_s if not seen.steady.reason else None,
        unsteady=seen.steady.reason,
        samples=level.samples,
        effective_samples=level.effective,
    )


def _run_difference(
    runs: Sequence[KnownRun],
    row: Sequence[_Seen],
    at: int,
    found: Difference | None,
    chance: float | None,
    tests: int,
) -> RunDifference:
    baseline, other = row[0], row[at]
    if found is None or chance is None:
        lacking = next(
            number for number, each in ((0, baseline), (at, other)) if each.level is None
        )
        level = _level(row[lacking], runs[lacking])
        return RunDifference(label=runs[at].label, reason=f"{runs[lacking].label}: {level.reason}")
    under = baseline.level.mean if baseline.level is not None else 0.0
    return RunDifference(
        label=runs[at].label,
        change=change_of(found),
        sureness=sureness_of(found.chance, chance),
        smallest=found.smallest,
        smallest_percent=100.0 * found.smallest / under if found.percent is not None else None,
        parting=_parting(baseline, other, tests),
    )


def _parting(baseline: _Seen, other: _Seen, tests: int) -> Parting | None:
    if baseline.track is None or other.track is None:
        return None
    first, second = together((baseline.track, other.track))
    warm_s = sorted((_warm_s(baseline), _warm_s(other)))
    # The apparent warm-up of one run may be where it diverges from the other.
    found = _parted(first, second, warm_s[0], tests)
    since = found.since if found is not None else None
    if since is not None and since.absolute_low <= 0 <= since.absolute_high:
        # They met again: one run warmed up longer than the other.
        found = _parted(first, second, warm_s[1], tests)
    return found


def _parted(first: Track, second: Track, warm_s: float, tests: int) -> Parting | None:
    step_s = first.step_s
    begin = round(warm_s / step_s)
    left, right = first.values[begin:], second.values[begin:]
    at = parts_at(left, right, tests=tests)
    if at is None:
        return None
    both = min(len(left), len(right))
    since = _since(left[at:both], right[at:both])
    whole = not any(None not in pair for pair in zip(left[:at], right[:at], strict=True))
    return Parting(at_s=(begin + at) * step_s, whole=whole, since=since)


def _warm_s(seen: _Seen) -> float:
    return seen.steady.begins * seen.track.step_s if seen.track is not None else 0.0


def _since(left: Sequence[float | None], right: Sequence[float | None]) -> Change | None:
    first, second = level_of(left), level_of(right)
    return None if first is None or second is None else change_of(difference(first, second))


def _line(seen: _Seen, run: KnownRun) -> RunLine:
    if seen.track is None:
        return RunLine(label=run.label, step_s=0.0, points=())
    track = on_grid(seen.track, seen.track.length_s / PLOT_POINTS)
    points = tuple(
        ComparePoint(at_s=(at + 0.5) * track.step_s, value=value)
        for at, value in enumerate(track.values)
        if value is not None
    )
    return RunLine(label=run.label, step_s=track.step_s, points=points)


def _first_partings(
    runs: Sequence[KnownRun],
    comparisons: Sequence[MetricComparison],
    steps: Mapping[Shown, float],
) -> tuple[FirstParting, ...]:
    found = []
    for number, run in enumerate(runs[1:]):
        parted = [
            (parting.at_s, each.metric)
            for each in comparisons
            if (parting := each.differences[number].parting) is not None
        ]
        if not parted:
            continue
        first_s, first = min(parted, key=lambda each: each[0])
        near_s = first_s + _TOGETHER * steps[first]
        metrics = tuple(metric for at_s, metric in sorted(parted) if at_s <= near_s)
        found.append(FirstParting(label=run.label, at_s=first_s, metrics=metrics))
    return tuple(found)
