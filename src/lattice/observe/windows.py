"""Durations: the window of one value, and the step between values. Pure.

Every rule follows from the interval at which a job is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median

from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Making, Shown
from lattice.domain.telemetry import Mode
from lattice.observe.metric_query import Over, OwnerFilter, owner_filter

INTERVALS = frozenset(each.interval_s for each in Mode)
"""The intervals at which a run can be sampled."""
USUAL_S = Mode.PROD.interval_s
COARSE_S = 60
"""The shortest step of a series that is kept for years: finer ones would be too large."""
_DELIVERY_S = 5.0
"""How long a sample may take from its node to the store."""
_CLOCKS_S = 5.0
"""How much the clocks of servers and Slurm may differ."""
_ONE_LATE, _TWO_LATE = 2.5, 4.0
"""In intervals: two samples even if one is late, and three even if two are."""


def fresh_s(interval_s: float, step_s: int = 0) -> int:
    """How long a value is current.

    One sample may be late, and the next may be on its way. Values with a step of `step_s` are
    current for at least that long.
    """
    return max(math.ceil(interval_s * _ONE_LATE + _DELIVERY_S), step_s)


def step_s(length_s: float, interval_s: float, most: int) -> int:
    """The step between values over some time: the sampling interval, and at most `most` values."""
    return max(1, math.ceil(interval_s), math.ceil(length_s / most))


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one value: the samples of the seconds before its time."""

    gauge: Over
    gauge_s: int
    rate_s: int
    fresh_only: bool = False
    """True: a series has a rate only while it also has a sample in `gauge_s`."""

    def seconds(self, metric: Shown) -> int:
        """The length of the window of this metric."""
        return self.gauge_s if SHOWN[metric].making is Making.LAST else self.rate_s


def live_window(
    interval_s: float, lasted_s: float, step_s: int = 0, *, fresh_only: bool = False
) -> Window:
    """The window of the newest values: a gauge while it is fresh, and a rate of a few samples.

    A rate covers 4 intervals, so that it is steady although samples are late. It never begins
    before the job, which has lasted `lasted_s`, because some stores would count that time as idle.
    Values with a step of `step_s` cover at least that time, so that no sample is left out.
    """
    gauge_s = fresh_s(interval_s, step_s)
    rate_s = max(math.ceil(interval_s * _TWO_LATE + _DELIVERY_S), step_s)
    if lasted_s < rate_s:
        rate_s = max(math.ceil(lasted_s), gauge_s)
    return Window(Over.LAST, gauge_s, rate_s, fresh_only)


def past_window(step_s: int, interval_s: float) -> Window:
    """The window of means over a step of the past.

    A rate needs two samples, so its window is never shorter than 2.5 intervals. No delivery time is
    added.
    """
    return Window(Over.MEAN, step_s, max(step_s, math.ceil(interval_s * _ONE_LATE)))


@dataclass(frozen=True, slots=True)
class RunWindow:
    """The time of a run, and the owner of its series."""

    owner: OwnerFilter
    begin: float
    end: float

    @classmethod
    def of(cls, attempt: JobAttempt, now: float) -> RunWindow:
        """For an attempt that has started. Raises `BadSelector` if it has no owner."""
        started, ended = attempt.attempt.started, attempt.attempt.ended
        assert started is not None
        begin = started.timestamp()
        end = ended.timestamp() if ended is not None else now
        return cls(owner_filter(attempt), begin, max(end, begin + 1.0))

    @property
    def length_s(self) -> float:
        return self.end - self.begin

    @property
    def at(self) -> float:
        """The time of a query about the whole run: clocks may differ a little."""
        return self.end + _CLOCKS_S

    @property
    def whole_s(self) -> int:
        """The window of such a query. The owner's labels exclude other runs."""
        return math.ceil(self.length_s + 2 * _CLOCKS_S)

    def interval_s(
        self, samples: Iterable[float], intervals: Collection[float] = INTERVALS
    ) -> float:
        """The shortest interval at which half of the run was sampled; else the longest interval.

        `samples` has one count per node; without any it is the usual interval. The counts decide,
        because a mode may change during a run and is forgotten at its end.
        """
        counts = list(samples)
        if not counts:
            return USUAL_S
        middle = median(counts)
        found = (each for each in intervals if 2 * middle * each >= self.length_s)
        return min(found, default=max(intervals))

    def steps(self, interval_s: float, most: int, least_s: float = 0.0) -> RunSteps:
        """As finely as the run was sampled, in at most `most` steps of at least `least_s`."""
        step = step_s(self.length_s, max(interval_s, least_s), most)
        return RunSteps(self, step, past_window(step, interval_s), interval_s)


@dataclass(frozen=True, slots=True)
class RunSteps:
    """A run in steps of one length."""

    run: RunWindow
    step_s: int
    window: Window
    interval_s: float

    @property
    def count(self) -> int:
        """Whole steps only: the last one is not complete."""
        return max(1, int(self.run.length_s // self.step_s))

    @property
    def first(self) -> float:
        """The time of the first value. A value is at the end of its step."""
        return self.run.begin + self.step_s

    @property
    def last(self) -> float:
        return self.run.begin + self.count * self.step_s
