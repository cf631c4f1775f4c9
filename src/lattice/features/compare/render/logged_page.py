"""The training runs of a comparison as a part of the HTML page. Pure: all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable

from lattice.base.style import Style
from lattice.features.compare.model import LoggedComparison, TrainingComparison
from lattice.features.compare.render.logged import (
    logged,
    logged_interval,
    logged_size,
    parted,
    shown_change,
    training_notes,
)
from lattice.features.compare.render.markup import Drawn, figure, html_table, html_text, paragraph

_STYLE = Style()


def training_part(trainings: TrainingComparison) -> str:
    """Return tables and plots."""
    parts = [_runs(trainings), _metrics(trainings), _parameters(trainings)]
    parts += [_figure(trainings, each) for each in trainings.metrics]
    parts += [paragraph(each, "note") for each in training_notes(trainings)]
    return "".join(parts)


def _runs(trainings: TrainingComparison) -> str:
    rows = (
        (
            each.label,
            each.name,
            each.experiment,
            each.status,
            "" if each.epochs is None else str(each.epochs),
            each.id,
        )
        for each in trainings.runs
    )
    heading = ("run", "name", "experiment", "status", "epochs", "id")
    return html_table("The training runs, as they say themselves", heading, rows)


def _metrics(trainings: TrainingComparison) -> str:
    rows = []
    for row in trainings.metrics:
        for one in row.differences:
            change = shown_change(one)
            rows.append(
                (
                    row.name,
                    "" if one.baseline is None else logged(one.baseline, row.unit),
                    one.label,
                    "" if one.value is None else logged(one.value, row.unit),
                    logged_size(change, row.unit, _STYLE) if change is not None else "",
                    logged_interval(change, row.unit, _STYLE) if change is not None else "",
                    one.sureness.value,
                    parted(one) or " ",
                )
            )
    heading = ("logged", "A", "run", "mean", "difference", "95 % interval", "sure", "parted")
    return html_table("Means over what both have logged", heading, rows) if rows else ""


def _parameters(trainings: TrainingComparison) -> str:
    if not trainings.parameters:
        return ""
    rows = [
        (each.name, *(value.value or "" for value in each.values)) for each in trainings.parameters
    ]
    heading = ("", *(each.label for each in trainings.runs))
    return html_table("Parameters that differ", heading, rows)


def _figure(trainings: TrainingComparison, row: LoggedComparison) -> str:
    places = [point.at for each in row.lines for point in each.points]
    values = [point.value for each in row.lines for point in each.points]
    if not places:
        return ""
    first, last = min(places), max(*places, min(places) + 1)
    bottom = min(0.0, *values)
    top = max(values) if max(values) > bottom else bottom + 1.0
    axis = next((each.axis.value for each in row.lines if each.axis is not None), "step")
    ends = f"{logged(bottom, row.unit)} to {logged(top, row.unit)}"
    caption = f"{html_text(row.name)} from {ends} over {axis}s {first} to {last}"
    pieces: list[Iterable[Drawn]] = [
        [
            [
                ((point.at - first) / (last - first), (point.value - bottom) / (top - bottom))
                for point in each.points
            ]
        ]
        for each in row.lines
    ]
    return figure(caption, pieces, [each.label for each in trainings.runs])
