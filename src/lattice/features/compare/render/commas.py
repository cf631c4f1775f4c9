"""A comparison as CSV: one line per metric and run, then one per setting and run. Pure.

A setting has its name in the column `setting` and its value in the column `value`. What trainings
logged follows, with its name in the column `logged`, then the parameters that differ.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple

from lattice.base.text import inert
from lattice.features.compare.model import (
    Change,
    ComparedRun,
    Comparison,
    RunDifference,
    Setting,
    TrainingComparison,
)

_HEADING = (
    "metric", "unit", "run", "id", "name", "mean", "reason", "warm_up_s", "unsteady", "samples",
    "effective_samples", "absolute", "absolute_low", "absolute_high", "percent", "percent_low",
    "percent_high", "sureness", "smallest", "smallest_percent", "parted_s", "since_percent",
    "since_percent_low", "since_percent_high", "setting", "value", "differs",
    "logged", "axis", "parted_at", "beside", "parameter",
)  # fmt: skip
_CHANGE = (
    *("absolute", "absolute_low", "absolute_high"),
    *("percent", "percent_low", "percent_high"),
)
_SINCE = ("since_percent", "since_percent_low", "since_percent_high")
_FORMULA = ("=", "+", "-", "@")


def commas(comparison: Comparison) -> str:
    """Return every mean, difference and setting; an unknown one is empty, with its reason."""
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
                    *(None,) * 8,
                )
            )
    writer.writerows(_settings(comparison))
    if comparison.trainings is not None:
        writer.writerows(_logged(comparison, comparison.trainings))
    return text.getvalue()


def _settings(comparison: Comparison) -> Iterator[list[str]]:
    for setting in comparison.settings:
        for run, value in zip(comparison.runs, setting.values, strict=True):
            yield _line(
                run,
                reason=value.reason,
                setting=setting.name,
                value=value.value,
                differs=_differs(setting),
            )


def _logged(comparison: Comparison, trainings: TrainingComparison) -> Iterator[list[str]]:
    for row in trainings.metrics:
        for run, one in zip(comparison.runs[1:], row.differences, strict=False):
            baseline = {"mean": one.baseline, "logged": row.name, "unit": row.unit}
            yield _line(comparison.runs[0], **baseline)
            parting = one.parting
            since = parting.since if parting is not None else None
            found = dict(zip(_CHANGE, _change(one.change), strict=True))
            found |= dict(zip(_SINCE, _change(since)[3:], strict=True))
            yield _line(
                run,
                mean=one.value,
                reason=one.reason,
                sureness=one.sureness.value,
                unit=row.unit,
                logged=row.name,
                axis=one.axis.value if one.axis is not None else None,
                parted_at=parting.at if parting is not None else None,
                beside=" ".join(each.metric.value for each in parting.beside) if parting else None,
                **found,
            )
    for each in trainings.parameters:
        for run, value in zip(comparison.runs, each.values, strict=False):
            yield _line(
                run, reason=value.reason, parameter=each.name, value=value.value, differs="yes"
            )


def _line(run: ComparedRun, **fields: object) -> list[str]:
    known = {"run": run.label, "id": run.id, "name": run.name, **fields}
    return [_cell(known.get(each)) for each in _HEADING]


def _differs(setting: Setting) -> str:
    """Return `yes`, `no`, or an empty string if that is unknown."""
    if setting.differs:
        return "yes"
    return "" if any(each.value is None for each in setting.values) else "no"


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
    return astuple(change)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    # A spreadsheet would run such a value as a formula.
    return inert(f"'{value}" if value.startswith(_FORMULA) else value)
