"""A comparison as comma-separated values: a line a metric and run. Pure."""

from __future__ import annotations

import csv
import io

from lattice.base.text import inert
from lattice.features.compare.model import Change, Comparison, RunDifference

_HEADING = (
    "metric", "unit", "run", "id", "name", "mean", "reason", "warm_up_s", "unsteady", "samples",
    "effective_samples", "absolute", "absolute_low", "absolute_high", "percent", "percent_low",
    "percent_high", "sureness", "smallest", "smallest_percent", "parted_s", "since_percent",
    "since_percent_low", "since_percent_high",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@")


def commas(comparison: Comparison) -> str:
    """Every mean and difference; what nobody measured is empty, with its reason."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADING)
    for row in comparison.metrics:
        for number, run in enumerate(comparison.runs):
            level = row.levels[number]
            one = row.differences[number - 1] if number else None
            reason = level.reason or (one.reason if one is not None else "")
            figures = [level.warm_up_s, level.unsteady, level.samples, level.effective_samples]
            writer.writerow(
                _cell(each)
                for each in (
                    *(row.metric.value, row.unit, run.label, run.id, run.name),
                    *(level.mean, reason, *figures),
                    *_difference(one),
                )
            )
    return text.getvalue()


def _difference(one: RunDifference | None) -> tuple[object, ...]:
    if one is None:
        return (None,) * 13
    parting = one.parting
    since = parting.since if parting is not None else None
    return (
        *_change(one.change),
        one.sureness.value,
        one.smallest,
        one.smallest_percent,
        parting.at_s if parting is not None else None,
        *_change(since)[3:],
    )


def _change(change: Change | None) -> tuple[float | None, ...]:
    if change is None:
        return (None,) * 6
    return (
        change.absolute,
        change.absolute_low,
        change.absolute_high,
        change.percent,
        change.percent_low,
        change.percent_high,
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    # A spreadsheet would take such a name for a formula.
    return inert(f"'{value}" if value.startswith(_FORMULA) else value)
