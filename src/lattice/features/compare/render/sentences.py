"""A comparison in sentences, and its numbers as short text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.moment import duration
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.domain.measured import Shown
from lattice.domain.statistics.sureness import Sureness
from lattice.features.compare.model import (
    POWER_PERCENT,
    Change,
    Comparison,
    MetricComparison,
    RunDifference,
)

_VERBS = {
    Shown.GPU_UTILIZATION: ("uses", "GPU"),
    Shown.GPU_MEMORY_USED: ("uses", "GPU memory"),
    Shown.GPU_POWER_DRAW: ("draws", "GPU power"),
    Shown.CPU_UTILIZATION: ("uses", "CPU"),
    Shown.MEMORY_USED: ("uses", "memory"),
    Shown.NETWORK_TX_BYTES: ("sends", "over the network"),
    Shown.NETWORK_RX_BYTES: ("receives", "over the network"),
    Shown.IO_READ_BYTES: ("reads", "from storage"),
    Shown.IO_WRITE_BYTES: ("writes", "to storage"),
    Shown.MEMORY_CACHE: ("has", "page cache"),
}
_NOUNS = {
    Shown.IO_LATENCY_P99: "I/O latency (p99)",
    Shown.GPU_TEMPERATURE: "GPU temperature",
    Shown.GPU_SM_OCCUPANCY: "SM occupancy",
    Shown.MEMORY_LIMIT: "memory limit",
    Shown.OOM_KILLS: "number of OOM kills",
}
_REPORTED = frozenset({Sureness.SURE, Sureness.LIKELY})
_ASKED_ABOUT = frozenset({"image", "environment"})
"""Settings that are mentioned even if they are unknown for all runs."""


def reported_change(difference: RunDifference) -> Change | None:
    """Return the difference for the summary: since the runs diverge, or else over all."""
    parting = difference.parting
    if parting is not None and not parting.whole and parting.since is not None:
        since = parting.since
        if since.absolute_low > 0 or since.absolute_high < 0:
            return since
    return difference.change if difference.sureness in _REPORTED else None


def sentences(comparison: Comparison, style: Style) -> Iterator[str]:
    """Yield the findings of each run, one sentence each, the most certain first."""
    for number_, run in enumerate(comparison.runs[1:]):
        yield from _of_run(comparison, number_, run.label, style)


def _of_run(comparison: Comparison, number_: int, label: str, style: Style) -> Iterator[str]:
    rows = [(each, each.differences[number_]) for each in comparison.metrics]
    reported = [(row, one) for row, one in rows if reported_change(one) is not None]
    if not any(one.change is not None for _, one in rows):
        yield f"{label} can't be compared with A: there is nothing measured that both have."
        return
    if not reported:
        yield f"No difference was found between A and {label}." + _would_see(rows, style)
    order = {Sureness.SURE: 0, Sureness.LIKELY: 1}
    for row, one in sorted(reported, key=lambda each: order.get(each[1].sureness, 0)):
        yield _sentence(label, row, one, style)
    perhaps = [
        row.metric.value
        for row, one in rows
        if one.sureness is Sureness.PERHAPS and reported_change(one) is None
    ]
    if perhaps:
        names = ", ".join(perhaps)
        yield f"{label} perhaps differs in {names}: too little to be sure among so many."
    first = next((each for each in comparison.partings if each.label == label), None)
    if first is not None and len(reported) > 1:
        names = " and ".join(each.value for each in first.metrics)
        when = f"at {duration(first.at_s)}" if first.at_s else "from the start"
        yield f"A and {label} part first in {names}, {when}."


def _sentence(label: str, row: MetricComparison, one: RunDifference, style: Style) -> str:
    change = reported_change(one)
    assert change is not None
    less = change.absolute < 0
    amount = (
        minus(f"{abs(change.percent):.{0 if abs(change.percent) >= 9.95 else 1}f} %", style)
        if change.percent is not None
        else number(abs(change.absolute), row.unit)
    )
    bounds = interval(change, row.unit, style)
    if row.metric in _VERBS:
        verb, noun = _VERBS[row.metric]
        text = f"{label} {verb} {amount} {'less' if less else 'more'} {noun} ({bounds})"
    else:
        noun = _NOUNS[row.metric]
        text = f"The {noun} of {label} is {amount} {'lower' if less else 'higher'} ({bounds})"
    if one.parting is not None and change is one.parting.since:
        text += f", from {duration(one.parting.at_s)} on"
    if one.sureness is Sureness.LIKELY and change is one.change:
        text += "; likely, not sure"
    return text + "."


def _would_see(rows: list[tuple[MetricComparison, RunDifference]], style: Style) -> str:
    row, one = next(((row, one) for row, one in rows if one.smallest is not None), (None, None))
    if row is None or one is None:
        return ""
    return f" One of {smallest(row, one, style)} in {row.metric.value} would have been seen."


def smallest(row: MetricComparison, one: RunDifference, style: Style) -> str:
    """Format the smallest difference that would be found."""
    if one.smallest_percent is not None:
        return minus(
            f"{one.smallest_percent:.{0 if one.smallest_percent >= 9.95 else 1}f} %", style
        )
    return number(one.smallest or 0.0, row.unit)


def power_line(comparison: Comparison, style: Style) -> str:
    """Return the smallest detectable difference of each metric; with several runs the largest."""
    sizes = []
    for row in comparison.metrics:
        known = [each for each in row.differences if each.smallest is not None]
        if known:
            worst = max(known, key=lambda each: each.smallest or 0.0)
            sizes.append(f"{row.metric.value} {smallest(row, worst, style)}")
    if not sizes:
        return ""
    return (
        f"Smallest differences that {POWER_PERCENT} of 100 such comparisons would find: "
        f"{', '.join(sizes)}."
    )


def unsteady_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the metrics without a steady state, and the warm-up that was left out."""
    for number_, run in enumerate(comparison.runs):
        reasons: dict[str, list[str]] = {}
        longest_s = 0.0
        for row in comparison.metrics:
            level = row.levels[number_]
            if level.mean is None:
                continue
            longest_s = max(longest_s, level.warm_up_s or 0.0)
            if level.unsteady:
                reasons.setdefault(level.unsteady, []).append(row.metric.value)
        if longest_s:
            yield f"{run.label}: a warm-up of up to {duration(longest_s)} is left out."
        for reason, names in reasons.items():
            named = ", ".join(names)
            yield f"{run.label}: no steady state of {named} ({reason}); its mean is marked ~."


def missing_lines(comparison: Comparison) -> Iterator[str]:
    """Yield why numbers are missing, each reason once."""
    reasons: dict[str, list[str]] = {}
    for row in comparison.metrics:
        for number_, level in enumerate(row.levels):
            if level.mean is None:
                why = f"{comparison.runs[number_].label}: {level.reason}"
                reasons.setdefault(why, []).append(row.metric.value)
    for why, names in reasons.items():
        yield f"— {', '.join(names)} of {why}"


def unset_lines(comparison: Comparison) -> Iterator[str]:
    """Yield which settings are unknown, for which runs and why; each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in comparison.settings:
        lacking = [
            (run.label, value.reason)
            for run, value in zip(comparison.runs, each.values, strict=True)
            if value.value is None
        ]
        of_all = len(lacking) == len(comparison.runs)
        if of_all and each.name not in _ASKED_ABOUT:
            continue
        for reason in dict.fromkeys(why for _, why in lacking):
            who = "" if of_all else ", ".join(label for label, why in lacking if why == reason)
            reasons.setdefault((who, reason), []).append(each.name)
    for (who, reason), names in reasons.items():
        yield f"— {', '.join(names)}{f' of {who}' if who else ''}: {reason}"


def signed(value: float, unit: str, style: Style) -> str:
    """Return a number with its sign."""
    text = number(value, unit)
    return minus(text if value < 0 else f"+{text}", style)


def percent(value: float, style: Style) -> str:
    """Format a percentage: `−12 %`, `+0.4 %`."""
    return minus(f"{value:+.{_digits(value)}f} %", style)


def interval(change: Change, unit: str, style: Style) -> str:
    """Format an interval: `−15 to −9 %`, or in the metric's own unit without percentages."""
    low, high = change.percent_low, change.percent_high
    if low is None or high is None:
        edges = (change.absolute_low, change.absolute_high)
        return " to ".join(signed(each, unit, style) for each in edges)
    digits = max(_digits(low), _digits(high)) if max(abs(low), abs(high)) < 10 else 0
    return minus(f"{low:+.{digits}f} to {high:+.{digits}f} %", style)


def size(change: Change, unit: str, style: Style) -> str:
    """Format the difference, in percent if possible."""
    if change.percent is not None:
        return percent(change.percent, style)
    return signed(change.absolute, unit, style)


def minus(text: str, style: Style) -> str:
    """Use a true minus sign if the terminal can show it."""
    return text.replace("-", style.glyph("−", "-"))


def _digits(value: float) -> int:
    return 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.095 or value == 0 else 2
