"""`--fail-on`: a bound on a difference, for scripts such as CI gates.

    METRIC < or > NUMBER[%|K|M|G|T]        gpu_utilization<-5%   memory_used>2G

The number is a difference from the baseline: in percent of it, or in the metric's own unit.

A bound is broken when the estimate is beyond it and the interval excludes zero. That is checked for
the steady means and for the time since the runs diverge. Noise alone does that in one of forty
comparisons. If only the interval reaches beyond the bound, the result is unsure. That passes with a
warning, unless `--fail-unsure` is set. A metric that was not measured fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from lattice.base.errors import UsageError
from lattice.base.moment import duration
from lattice.domain.measured import SHOWN, Shown
from lattice.features.compare.model import Change, Comparison, RunDifference

_FORM = re.compile(
    r"\s*([a-z0-9_]+)\s*([<>])\s*([+-]?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([%KMGT]?)\s*"
)
_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HINT = "Write a metric, < or >, and a difference from the baseline: 'gpu_utilization<-5%'."


class FailOnVerdict(StrEnum):
    """The result of one bound and one run."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNSURE = "unsure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Bound:
    """One parsed bound."""

    text: str
    metric: Shown
    below: bool
    value: float
    in_percent: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of one bound and one run, with a message."""

    verdict: FailOnVerdict
    words: str


def read_bound(text: str) -> Bound:
    """Parse a bound. Raises `UsageError` with a hint."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no bound: {_problem(text)}", hint=_HINT)
    word, sign, number, unit = found.groups()
    try:
        metric = Shown(word)
    except ValueError:
        there = ", ".join(each.value for each in Shown)
        raise UsageError(f"{word!r} is no metric", hint=f"There are {there}.") from None
    if unit in _SIZES and not SHOWN[metric].unit.startswith("bytes"):
        raise UsageError(
            f"{text!r}: {word} is not in bytes",
            hint=f"Leave the {unit} out, or write a % for a share of the baseline.",
        )
    value = float(number) * _SIZES.get(unit, 1)
    if (sign == "<" and value > 0) or (sign == ">" and value < 0):
        other = "-" if sign == "<" else ""
        raise UsageError(
            f"{text!r} would fail for two equal runs",
            hint=f"The number is a difference: write '{word}{sign}{other}{number.lstrip('+-')}"
            f"{unit}'.",
        )
    return Bound(text.strip(), metric, sign == "<", value, unit == "%")


def _problem(text: str) -> str:
    if "<" not in text and ">" not in text:
        return "it has neither < nor >"
    if any(each in text for each in ("<=", ">=", "=<", "=>", "==")):
        return "only < and > can stand there"
    if text.count("<") + text.count(">") > 1:
        return "it has more than one < or >"
    return "it needs a metric before and a number behind"


def judge(bound: Bound, comparison: Comparison) -> tuple[Judged, ...]:
    """Check every run against a bound."""
    row = next((each for each in comparison.metrics if each.metric is bound.metric), None)
    if row is None:
        unmeasured = f"{bound.text}: unknown, nothing of it was measured"
        return tuple(Judged(FailOnVerdict.UNKNOWN, unmeasured) for _ in comparison.runs[1:])
    return tuple(_judged(bound, each) for each in row.differences)


def _judged(bound: Bound, one: RunDifference) -> Judged:
    if one.change is None:
        return Judged(FailOnVerdict.UNKNOWN, f"{bound.text}: unknown for {one.label}: {one.reason}")
    whole = _weighed(bound, one.label, one.change)
    parting = one.parting
    if parting is None or parting.since is None or whole.verdict is FailOnVerdict.BROKEN:
        return whole
    since = _weighed(bound, one.label, parting.since)
    if since.verdict is not FailOnVerdict.BROKEN:
        return whole
    return replace(since, words=f"{since.words} since {duration(parting.at_s)}")


def _weighed(bound: Bound, label: str, change: Change) -> Judged:
    figures = _figures(bound, change)
    if figures is None:
        return Judged(
            FailOnVerdict.UNKNOWN,
            f"{bound.text}: unknown for {label}: the baseline is not told apart from zero, so "
            "there are no percents of it",
        )
    value, low, high = figures
    unit = " %" if bound.in_percent else ""
    shown = f"{label} is at {value:+.4g}{unit} ({low:+.4g} to {high:+.4g}{unit})"
    beyond = value < bound.value if bound.below else value > bound.value
    leaves_zero = high < 0 if bound.below else low > 0
    reaches = low < bound.value if bound.below else high > bound.value
    if beyond and leaves_zero:
        return Judged(FailOnVerdict.BROKEN, f"{bound.text}: broken, {shown}")
    if reaches:
        return Judged(FailOnVerdict.UNSURE, f"{bound.text}: unsure, {shown}")
    return Judged(FailOnVerdict.HOLDS, f"{bound.text}: holds, {shown}")


def _figures(bound: Bound, change: Change) -> tuple[float, float, float] | None:
    if not bound.in_percent:
        return change.absolute, change.absolute_low, change.absolute_high
    if change.percent is None or change.percent_low is None or change.percent_high is None:
        return None
    return change.percent, change.percent_low, change.percent_high
