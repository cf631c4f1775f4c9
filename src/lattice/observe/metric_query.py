"""Queries to the metric store (PromQL), as a small tree of expressions. Pure.

Only an `OwnerFilter` makes selectors, so each selector has an owner. Names come from the catalogue,
and durations are whole seconds. One function quotes (`lattice.domain.promql`). Input of a caller
can't get into a query in any other way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from lattice.domain.attempts import JobAttempt
from lattice.domain.metric import CATALOGUE, Labels
from lattice.domain.promql import BadSelector, checked_name, quoted, scope_of

FIGURE = "figure"
"""The label in a result that names the part of the query that a value belongs to."""
_FIGURE_NAME = re.compile(r"[a-z0-9_ ]+")


class Over(StrEnum):
    """Functions over the samples of one series in a window."""

    LAST = "last_over_time"
    RATE = "rate"
    INCREASE = "increase"
    MEAN = "avg_over_time"
    MOST = "max_over_time"
    LEAST = "min_over_time"
    SAMPLES = "count_over_time"
    RESETS = "resets"


class Gather(StrEnum):
    """Aggregations of several series."""

    SUM = "sum"
    MEAN = "avg"
    MOST = "max"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class OwnedSeries:
    """The series of one owner, of some metrics. An `OwnerFilter` makes it."""

    names: tuple[str, ...]
    owner: OwnerFilter
    counted: bool = False
    """True: each measurement once. Of a histogram, only the bucket that holds all."""

    def __post_init__(self) -> None:
        if not self.names or not all(each in CATALOGUE for each in self.names):
            raise BadSelector("a selector names metrics of the catalogue")

    def __str__(self) -> str:
        series = [CATALOGUE[each].series for each in self.names]
        once = ',le=~"|[+]Inf"' if self.counted else ""
        if len(series) == 1:
            return f"{series[0]}{{{self.owner}{once}}}"
        return f'{{__name__=~"{"|".join(series)}",{self.owner}{once}}}'


@dataclass(frozen=True, slots=True)
class OwnerFilter:
    """The labels of one attempt of one allocation of one user."""

    labels: Labels

    def __post_init__(self) -> None:
        known = dict(self.labels)
        if len(known) < len(self.labels):
            raise BadSelector("a label stands twice in a filter")
        if not all(known.get(each) for each in ("alloc", "attempt", "user")):
            # An empty matcher would match every series that lacks the label.
            raise BadSelector("a filter that filters nothing")

    def of(self, *names: str, counted: bool = False) -> OwnedSeries:
        """Its series of these metrics."""
        return OwnedSeries(names, self, counted)

    def __str__(self) -> str:
        return ",".join(f"{checked_name(name)}={quoted(value)}" for name, value in self.labels)


def owner_filter(attempt: JobAttempt) -> OwnerFilter:
    """The filter for every query about an attempt. Raises `BadSelector`."""
    return OwnerFilter(scope_of(attempt))


@dataclass(frozen=True, slots=True)
class Ranged:
    """A function over the last seconds of each series."""

    over: Over
    series: OwnedSeries
    seconds: int

    def __str__(self) -> str:
        return f"{self.over.value}({self.series}[{_seconds(self.seconds)}])"


@dataclass(frozen=True, slots=True)
class While:
    """The values of the left side, where the right side has any."""

    what: Expression
    there: Expression

    def __str__(self) -> str:
        return f"({self.what} and {self.there})"


@dataclass(frozen=True, slots=True)
class Gathered:
    """An aggregation."""

    gather: Gather
    what: Expression
    by: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f" by ({', '.join(self.by)})" if self.by else ""
        return f"{self.gather.value}{by} ({self.what})"


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of histograms."""

    share: float
    buckets: Expression

    def __str__(self) -> str:
        return f"histogram_quantile({self.share:.4g}, {self.buckets})"


@dataclass(frozen=True, slots=True)
class Scaled:
    """Every value times a factor."""

    what: Expression
    factor: float

    def __str__(self) -> str:
        return f"({self.what} * {self.factor:g})"


@dataclass(frozen=True, slots=True)
class Moments:
    """The time of the newest sample of each series."""

    series: OwnedSeries

    def __str__(self) -> str:
        return f"timestamp({self.series})"


@dataclass(frozen=True, slots=True)
class Again:
    """A function over an expression that is evaluated at every step."""

    over: Over
    what: Expression
    seconds: int
    step_s: int

    def __str__(self) -> str:
        steps = f"[{_seconds(self.seconds)}:{_seconds(self.step_s)}]"
        return f"{self.over.value}(({self.what}){steps})"


@dataclass(frozen=True, slots=True)
class Risen:
    """How much each counter has risen between its samples, if it was not reset."""

    series: OwnedSeries
    seconds: int

    def __str__(self) -> str:
        samples = f"{self.series}[{_seconds(self.seconds)}]"
        return f"(max_over_time({samples}) - min_over_time({samples}))"


@dataclass(frozen=True, slots=True)
class Lasted:
    """The time from the first sample of each series to the last, as far as steps find them.

    Only samples after a time count, because a step also finds samples from before it. The time of
    the query itself finds a sample after the last step.
    """

    series: OwnedSeries
    seconds: int
    step_s: int
    after: float

    def __str__(self) -> str:
        steps = f"[{_seconds(self.seconds)}:{_seconds(self.step_s)}]"
        newest = Moments(self.series)
        moments = f"({newest} > {self.after:.3f}){steps}"
        return f"(({newest} or max_over_time({moments})) - min_over_time({moments}))"


@dataclass(frozen=True, slots=True)
class Figured:
    """An expression with the label `FIGURE` on its values."""

    figure: str
    what: Expression

    def __post_init__(self) -> None:
        if not _FIGURE_NAME.fullmatch(self.figure):
            raise BadSelector("not the name of a figure")

    def __str__(self) -> str:
        return f'label_replace({self.what}, "{FIGURE}", "{self.figure}", "", "")'


@dataclass(frozen=True, slots=True)
class Either:
    """All parts in one result. `or` ignores the name of a metric, so parts are `Figured`."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return "\nor ".join(map(str, self.parts))


Expression: TypeAlias = (
    OwnedSeries
    | Ranged
    | While
    | Gathered
    | Quantile
    | Scaled
    | Moments
    | Again
    | Risen
    | Lasted
    | Figured
    | Either
)


def _seconds(seconds: int) -> str:
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds <= 0:
        raise BadSelector("a length of time is a whole number of seconds")
    return f"{seconds}s"
