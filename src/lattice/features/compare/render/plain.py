"""A comparison as text: summary, table, plot, settings and notes. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import duration, moment
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.table import UNKNOWN, Cell, Column, table
from lattice.base.text import cut, inert, wrapped
from lattice.domain.measured import Shown
from lattice.domain.statistics.sureness import Sureness
from lattice.features.compare.model import (
    CONFIDENCE_PERCENT,
    Comparison,
    MetricComparison,
    RunDifference,
)
from lattice.features.compare.render.logged import (
    has_runs,
    silent_lines,
    training_notes,
    training_sentences,
    training_tables,
)
from lattice.features.compare.render.plot import plot
from lattice.features.compare.render.sentences import (
    interval,
    missing_lines,
    power_line,
    reported_change,
    sentences,
    size,
    unset_lines,
    unsteady_lines,
)

_COLOURS = {Sureness.SURE: "yellow", Sureness.LIKELY: "yellow", Sureness.UNKNOWN: "dim"}


def comparison_text(
    comparison: Comparison, style: Style, now: datetime, *, every_plot: bool = False
) -> str:
    """Return the whole text, with one plot per metric or only for the most important one."""
    parts = [_heads(comparison, style, now), "\n"]
    parts += [_lines(each, style, colour="bold") for each in sentences(comparison, style)]
    trainings = comparison.trainings
    trained = trainings if trainings is not None and has_runs(trainings) else None
    if trained is not None:
        parting = training_sentences(trained, style)
        parts += [_lines(each, style, colour="bold") for each in parting]
    if comparison.metrics:
        parts += ["\n", _table(comparison, style)]
        below = [*missing_lines(comparison), *unsteady_lines(comparison)]
        power = power_line(comparison, style)
        parts += [
            _lines(each, style, colour="dim") for each in [*below, *([power] if power else [])]
        ]
    for row in comparison.metrics if every_plot else _most_telling(comparison):
        drawn = plot(comparison, row, style)
        parts += ["\n", drawn] if drawn else []
    if trained is not None:
        parts += ["\n", training_tables(trained, style)]
        parts += [_lines(each, style, colour="dim") for each in training_notes(trained)]
    elif trainings is not None:
        parts += [_lines(each, style, colour="dim") for each in silent_lines(trainings)]
    parts += ["\n", _settings(comparison, style)]
    parts += [_lines(each, style, colour="dim") for each in unset_lines(comparison)]
    parts += [_lines(each, style, colour="dim") for each in comparison.notes]
    return "".join(parts)


def _lines(text: str, style: Style, *, colour: str = "") -> str:
    pieces = wrapped(inert(text), style.width) if style.width is not None else [inert(text)]
    return "".join(style.paint(each, colour) + "\n" for each in pieces)


def _heads(comparison: Comparison, style: Style, now: datetime) -> str:
    columns = [
        Column("RUN"),
        Column("ID"),
        Column("NAME", least=8),
        Column("STATE", least=8),
        Column("STARTED", least=10),
        Column("TIME", right=True),
        Column("NODES", least=6),
        Column("FROM", least=6),
    ]
    rows: list[list[Cell]] = [
        [
            f"{run.label} (baseline)" if not number_ else run.label,
            run.id + (f" #{run.attempt}" if run.attempts > 1 else ""),
            run.name,
            run.state.value,
            moment(run.started, style, now),
            duration(run.length_s),
            run.nodes,
            run.origin.via or UNKNOWN,
        ]
        for number_, run in enumerate(comparison.runs)
    ]
    return table(columns, rows, style)


def _table(comparison: Comparison, style: Style) -> str:
    several = len(comparison.runs) > 2
    columns = [Column("METRIC", least=12), Column("A", right=True)]
    columns += [Column("RUN")] if several else []
    columns += [
        Column("MEAN" if several else "B", right=True),
        Column(style.glyph("Δ", "DIFF"), right=True),
        Column(f"{CONFIDENCE_PERCENT} %", right=True),
        Column("SURE"),
        Column("PARTED"),
    ]
    rows: list[list[Cell]] = []
    for row in comparison.metrics:
        for at, one in enumerate(row.differences, 1):
            name = row.metric.value if at == 1 else " "
            base = _mean(row, 0) if at == 1 else " "
            which = [one.label] if several else []
            rows.append([name, base, *which, _mean(row, at), *_judged(row, one, style)])
    return table(columns, rows, style)


def _mean(row: MetricComparison, at: int) -> str:
    level = row.levels[at]
    if level.mean is None:
        return UNKNOWN
    return number(level.mean, row.unit) + ("~" if level.unsteady else "")


def _judged(row: MetricComparison, one: RunDifference, style: Style) -> list[Cell]:
    change, parting = one.change, one.parting
    parted = " " if parting is None else "always" if parting.whole else duration(parting.at_s)
    if change is None:
        return [UNKNOWN, UNKNOWN, (one.sureness.value, "dim"), parted]
    return [
        size(change, row.unit, style),
        interval(change, row.unit, style),
        (one.sureness.value, _COLOURS.get(one.sureness, "")),
        parted,
    ]


def _most_telling(comparison: Comparison) -> list[MetricComparison]:
    first: tuple[Shown, ...] = comparison.partings[0].metrics if comparison.partings else ()
    for row in comparison.metrics:
        if row.metric in first:
            return [row]
    reported = (row for row in comparison.metrics if any(map(reported_change, row.differences)))
    drawn = (row for row in comparison.metrics if any(each.points for each in row.lines))
    found = next(reported, None) or next(drawn, None)
    return [found] if found is not None else []


def _settings(comparison: Comparison, style: Style) -> str:
    differing = [each for each in comparison.settings if each.differs]
    if not differing:
        return "Nothing that was asked for differs.\n"
    room = max(((style.width or 80) - 14) // len(comparison.runs) - 2, 8)
    columns = [Column("DIFFERS")] + [Column(run.label, least=8) for run in comparison.runs]
    rows: list[list[Cell]] = [
        [each.name, *(_value(value.value, room, style) for value in each.values)]
        for each in differing
    ]
    return table(columns, rows, style)


def _value(value: str | None, room: int, style: Style) -> str:
    text = inert(value or "")
    return cut(text, room) if style.width is not None else text
