"""The training runs of a comparison as sentences and text tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.table import UNKNOWN, Cell, Column, table
from lattice.base.text import inert
from lattice.domain.statistics.sureness import Sureness
from lattice.features.compare.model import (
    Change,
    EpochParting,
    LoggedComparison,
    LoggedDifference,
    TrainingAxis,
    TrainingComparison,
)
from lattice.features.compare.render.sentences import interval, minus, percent, size
from lattice.features.compare.training.trainings import NO_RUN

_REPORTED = frozenset({Sureness.SURE, Sureness.LIKELY})
_COLOURS = {Sureness.SURE: "yellow", Sureness.LIKELY: "yellow", Sureness.UNKNOWN: "dim"}
_TIMES = {f"seconds_per_{axis.value}": axis.value for axis in TrainingAxis}


def has_runs(trainings: TrainingComparison | None) -> bool:
    """Return True if any allocation has a training run."""
    return trainings is not None and any(each.id for each in trainings.runs)


def training_sentences(trainings: TrainingComparison, style: Style) -> Iterator[str]:
    """Yield where each run parts from the baseline, and what was measured there."""
    for number_, run in enumerate(trainings.runs[1:]):
        rows = [(each, each.differences[number_]) for each in trainings.metrics]
        reported = [(row, one) for row, one in rows if reported_logged(one) is not None]
        for row, one in reported:
            yield _sentence(row, one, style)
        first = next((each for each in trainings.partings if each.label == run.label), None)
        if first is not None and len(reported) > 1:
            names = " and ".join(inert(each) for each in first.names)
            at = f"{first.axis.value} {first.at}"
            yield f"The trainings A and {run.label} part first in {names}, at {at}."
        if not reported and any(one.change is not None for _, one in rows):
            yield f"No difference was found between the trainings A and {run.label}."


def reported_logged(one: LoggedDifference) -> Change | None:
    """Return the difference since the runs parted, or else over all if it is sure enough."""
    if one.parting is not None and one.parting.since is not None:
        return one.parting.since
    return one.change if one.sureness in _REPORTED else None


def shown_change(one: LoggedDifference) -> Change | None:
    """Return the difference for a table: since they parted, or else over all that both have."""
    return reported_logged(one) or one.change


def _sentence(row: LoggedComparison, one: LoggedDifference, style: Style) -> str:
    change = reported_logged(one)
    assert change is not None
    less = change.absolute < 0
    if change.percent is not None:
        amount = percent(abs(change.percent), style).lstrip("+")
    else:
        amount = logged(abs(change.absolute), row.unit)
    bounds = logged_interval(change, row.unit, style)
    if row.name in _TIMES:
        article = "An" if _TIMES[row.name] == "epoch" else "A"
        direction = "shorter" if less else "longer"
        text = f"{article} {_TIMES[row.name]} of {one.label} takes {amount} {direction} ({bounds})"
    else:
        direction = "lower" if less else "higher"
        text = f"{inert(row.name)} of {one.label} is {amount} {direction} ({bounds})"
    parting = one.parting
    if parting is None or one.axis is None:
        return text + "."
    begun = "from the start" if parting.whole else f"from {one.axis.value} {parting.at} on"
    return f"{text}, {begun}. {_beside(parting, one.axis, style)}"


def _beside(parting: EpochParting, axis: TrainingAxis, style: Style) -> str:
    if not parting.beside:
        return f"Nothing measured stands beside that: {parting.reason}."
    parts = [
        f"{each.metric.value} {size(each.change, each.unit, style)} "
        f"({interval(each.change, each.unit, style)})"
        + (f" from {axis.value} {each.at}" if each.at != parting.at else "")
        for each in parting.beside
    ]
    return f"Measured at the same time: {', '.join(parts)}."


def training_tables(trainings: TrainingComparison, style: Style) -> str:
    """Return the runs, what they logged, and the parameters that differ."""
    parts = [_runs(trainings, style)]
    if trainings.metrics:
        parts += ["\n", _logged(trainings, style)]
    if trainings.parameters:
        parts += ["\n", _parameters(trainings, style)]
    elif sum(bool(each.id) for each in trainings.runs) > 1:
        parts.append("No logged parameter differs.\n")
    return "".join(parts)


def _runs(trainings: TrainingComparison, style: Style) -> str:
    columns = [Column("TRAINING"), Column("NAME", least=8), Column("EXPERIMENT", least=6)]
    columns += [Column("STATUS"), Column("EPOCHS", right=True), Column("ID", least=8)]
    rows: list[list[Cell]] = [
        [
            each.label if at else f"{each.label} (baseline)",
            inert(each.name) or UNKNOWN,
            inert(each.experiment) or UNKNOWN,
            inert(each.status) or UNKNOWN,
            UNKNOWN if each.epochs is None else str(each.epochs),
            inert(each.id) or UNKNOWN,
        ]
        for at, each in enumerate(trainings.runs)
    ]
    return table(columns, rows, style)


def _logged(trainings: TrainingComparison, style: Style) -> str:
    several = len(trainings.runs) > 2
    columns = [Column("LOGGED", least=10), Column("A", right=True)]
    columns += [Column("RUN")] if several else []
    columns += [
        Column("MEAN" if several else "B", right=True),
        Column(style.glyph("Δ", "DIFF"), right=True),
        Column("95 %", right=True),
        Column("SURE"),
        Column("PARTED"),
    ]
    rows: list[list[Cell]] = []
    for row in trainings.metrics:
        for at, one in enumerate(row.differences, 1):
            name = inert(row.name) if at == 1 else " "
            which = [one.label] if several else []
            ends = [_value(one.baseline, row.unit), *which, _value(one.value, row.unit)]
            rows.append([name, *ends, *_judged(row, one, style)])
    return table(columns, rows, style)


def _judged(row: LoggedComparison, one: LoggedDifference, style: Style) -> list[Cell]:
    change = shown_change(one)
    if change is None:
        return [UNKNOWN, UNKNOWN, (one.sureness.value, "dim"), parted(one) or " "]
    return [
        logged_size(change, row.unit, style),
        logged_interval(change, row.unit, style),
        (one.sureness.value, _COLOURS.get(one.sureness, "")),
        parted(one) or " ",
    ]


def _parameters(trainings: TrainingComparison, style: Style) -> str:
    columns = [Column("PARAMETER", least=8)]
    columns += [Column(each.label, least=8) for each in trainings.runs]
    rows: list[list[Cell]] = [
        [inert(each.name), *(inert(value.value or "") or UNKNOWN for value in each.values)]
        for each in trainings.parameters
    ]
    return table(columns, rows, style)


def silent_lines(trainings: TrainingComparison) -> Iterator[str]:
    """Yield why no run is known, where that is not only because there is none."""
    yield from dict.fromkeys(
        f"Training runs: {each.reason}." for each in trainings.runs if each.reason != NO_RUN
    )
    yield from trainings.notes


def training_notes(trainings: TrainingComparison) -> Iterator[str]:
    """Yield what is missing, each reason once, and which runs were left out."""
    for run in trainings.runs:
        if run.reason:
            yield f"— the training {run.label}: {inert(run.reason)}"
    reasons: dict[str, list[str]] = {}
    of_runs = {each.reason for each in trainings.runs}
    for row in trainings.metrics:
        for one in row.differences:
            if one.reason and one.reason not in of_runs:
                reasons.setdefault(f"{one.label}: {one.reason}", []).append(inert(row.name))
    for why, names in reasons.items():
        yield f"— {', '.join(names)} of {why}"
    for run in trainings.runs:
        if run.others:
            yield (
                f"{run.label} has {run.others} more {_plural('run', run.others)}: the one that "
                "went furthest is compared."
            )
    yield from trainings.notes


def parted(one: LoggedDifference) -> str:
    """Return where it parted: `epoch 12`, or empty."""
    if one.parting is None or one.axis is None:
        return ""
    return "always" if one.parting.whole else f"{one.axis.value} {one.parting.at}"


def logged(value: float, unit: str) -> str:
    """Format a logged value. Its store knows no units."""
    return number(value, unit) if unit else f"{value:.4g}"


def logged_size(change: Change, unit: str, style: Style) -> str:
    """Format the difference, in percent if possible."""
    if change.percent is not None or unit:
        return size(change, unit, style)
    return minus(f"{change.absolute:+.4g}", style)


def logged_interval(change: Change, unit: str, style: Style) -> str:
    """Format its interval."""
    if change.percent_low is not None or unit:
        return interval(change, unit, style)
    edges = (change.absolute_low, change.absolute_high)
    return minus(" to ".join(f"{each:+.4g}" for each in edges), style)


def _value(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else logged(value, unit)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
