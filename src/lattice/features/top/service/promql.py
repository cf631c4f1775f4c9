"""The queries that are composed, as a small tree. Pure.

There is no way to write a selector without its owner: every one is made by an `OwnerFilter`, names
come from the catalogue, lengths of time are whole seconds, and one function quotes
(`lattice.domain.promql`). Nothing a caller sends is ever part of a query but through these.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from lattice.domain.attempts import JobAttempt
from lattice.domain.metric import CATALOGUE, Labels
from lattice.domain.promql import BadSelector, checked_name, quoted, scope_of

FIGURE = "figure"
"""The label in an answer that says which figure a value is."""


class Over(StrEnum):
    """What is made of the samples of one series in a stretch of time."""

    LAST = "last_over_time"
    RATE = "rate"
    MEAN = "avg_over_time"
    MOST = "max_over_time"
    SAMPLES = "count_over_time"
    RESETS = "resets"


class Gather(StrEnum):
    """What is made of several series."""

    SUM = "sum"
    MEAN = "avg"
    MOST = "max"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Selector:
    """Series of one owner. Made by an `OwnerFilter` only."""

    names: tuple[str, ...]
    owner: OwnerFilter
    counted: bool = False
    """Each once: of a histogram the bucket of all, of others the series without the label."""

    def __post_init__(self) -> None:
        if not self.names or not all(each in CATALOGUE for each in self.names):
            raise BadSelector("a selector names metrics of the catalogue")

    def __str__(self) -> str:
        series = [CATALOGUE[each].series for each in self.names]
        head = f'__name__="{series[0]}"' if len(series) == 1 else f'__name__=~"{"|".join(series)}"'
        once = ',le=~"|[+]Inf"' if self.counted else ""
        return f"{{{head},{self.owner}{once}}}"


@dataclass(frozen=True, slots=True)
class OwnerFilter:
    """Whose series: those of one attempt of one allocation of one user."""

    labels: Labels

    def __post_init__(self) -> None:
        told = dict(self.labels)
        if not all(told.get(each) for each in ("alloc", "attempt", "user")):
            # An empty matcher would match every series that lacks the label.
            raise BadSelector("a filter that filters nothing")

    def of(self, *names: str, counted: bool = False) -> Selector:
        """Its series of these metrics."""
        return Selector(names, self, counted)

    def __str__(self) -> str:
        return ",".join(f"{checked_name(name)}={quoted(value)}" for name, value in self.labels)


def owner_filter(attempt: JobAttempt) -> OwnerFilter:
    """The filter of everything that is asked about an attempt. Raises `BadSelector`."""
    return OwnerFilter(scope_of(attempt))


@dataclass(frozen=True, slots=True)
class Ranged:
    """A function over the last so many seconds of each series."""

    over: Over
    selector: Selector
    seconds: int

    def __str__(self) -> str:
        return f"{self.over.value}({self.selector}[{_seconds(self.seconds)}])"


@dataclass(frozen=True, slots=True)
class While:
    """What the left has, where the right has anything."""

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
    """Of summed buckets."""

    share: float
    buckets: Expression

    def __str__(self) -> str:
        return f"histogram_quantile({self.share:.4g}, {self.buckets})"


@dataclass(frozen=True, slots=True)
class Moments:
    """When each series was last measured."""

    selector: Selector

    def __str__(self) -> str:
        return f"timestamp({self.selector})"


@dataclass(frozen=True, slots=True)
class Again:
    """A function over an expression that is looked at every so many seconds."""

    over: Over
    what: Expression
    seconds: int
    step_s: int

    def __str__(self) -> str:
        steps = f"[{_seconds(self.seconds)}:{_seconds(self.step_s)}]"
        return f"{self.over.value}(({self.what}){steps})"


@dataclass(frozen=True, slots=True)
class Risen:
    """By how much each counter that was not begun anew has risen between its samples."""

    selector: Selector
    seconds: int

    def __str__(self) -> str:
        samples = f"{self.selector}[{_seconds(self.seconds)}]"
        return f"(max_over_time({samples}) - min_over_time({samples}))"


@dataclass(frozen=True, slots=True)
class Lasted:
    """The time from the first sample of each series to the last, as far as looks find them.

    Those after a moment only: a look also sees what was a while before it.
    """

    selector: Selector
    seconds: int
    step_s: int
    after: float

    def __str__(self) -> str:
        looks = f"[{_seconds(self.seconds)}:{_seconds(self.step_s)}]"
        moments = f"({Moments(self.selector)} > {self.after:.3f}){looks}"
        return f"(max_over_time({moments}) - min_over_time({moments}))"


@dataclass(frozen=True, slots=True)
class Figured:
    """An expression whose values say which figure they are."""

    figure: str
    what: Expression

    def __post_init__(self) -> None:
        if not self.figure.replace("_", "").isalnum():
            raise BadSelector("not the name of a figure")

    def __str__(self) -> str:
        return f'label_replace({self.what}, "{FIGURE}", "{self.figure}", "", "")'


@dataclass(frozen=True, slots=True)
class Either:
    """All of them in one answer."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return "\nor ".join(map(str, self.parts))


Expression: TypeAlias = (
    Selector
    | Ranged
    | While
    | Gathered
    | Quantile
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
