"""The rows of what a job has written of itself: spans by name, events, log records. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from lattice.base.moment import duration
from lattice.base.quantity import number
from lattice.base.text import inert
from lattice.features.timeline.model import (
    MarkKind,
    MarkRow,
    OwnTimeline,
    PhaseKind,
    SpanKind,
    SpanRow,
    Timeline,
)
from lattice.features.timeline.render.bars import Axis, Bar, BarRow

MOST_SPAN_ROWS = 12
MOST_MARK_ROWS = 6
_MOST_DEPTH = 3
_LONG_S = 100.0
_LEAST_SHARE = 0.005


def own_rows(timeline: OwnTimeline, axis: Axis) -> Iterable[BarRow]:
    """Rows of spans, and then of marks."""
    running_s = _running_s(timeline)
    yield from (_span_row(each, depth, axis, running_s) for each, depth in _chosen(timeline.spans))
    hidden = len(timeline.spans) - MOST_SPAN_ROWS
    if hidden > 0:
        yield BarRow(f"{hidden} more spans", (), "in -o json")
    # Warnings and errors before what is only told.
    marks = sorted(timeline.marks, key=_mark_rank)[:MOST_MARK_ROWS]
    yield from (_mark_row(each, axis) for each in marks)
    hidden = len(timeline.marks) - MOST_MARK_ROWS
    if hidden > 0:
        yield BarRow(f"{hidden} more events", (), "in -o json")


def length_text(seconds: float) -> str:
    """`31ms`, `2.41s`, `00:10:02`."""
    return duration(round(seconds)) if seconds >= _LONG_S else number(seconds * 1e6, "µs")


def _running_s(timeline: Timeline) -> float:
    return sum(
        ((each.ended or timeline.until) - each.started).total_seconds()
        for each in timeline.phases
        if each.kind is PhaseKind.RUNNING
    )


def _chosen(spans: tuple[SpanRow, ...]) -> Iterable[tuple[SpanRow, int]]:
    """Epochs and checkpoints, and what took longest, with a depth among these alone."""
    ranked = sorted(spans, key=lambda each: (each.kind is SpanKind.SPAN, -each.busy_s, each.name))
    chosen = {(each.name, each.named) for each in ranked[:MOST_SPAN_ROWS]}
    above: list[tuple[int, str]] = []
    for each in spans:
        while above and above[-1][0] >= each.depth:
            above.pop()
        if (each.name, each.named) in chosen:
            yield each, min(len(above), _MOST_DEPTH)
            above.append((each.depth, each.name))


def _span_row(row: SpanRow, depth: int, axis: Axis, running_s: float) -> BarRow:
    name = inert(row.name)
    bars = tuple(
        Bar(
            axis.at(each.started),
            axis.at(each.ended),
            row.kind.value,
            each.share,
            f"{row.name}: {each.started.isoformat()}, "
            + length_text((each.ended - each.started).total_seconds())
            + (f", {each.share:.0%}" if each.share < 1 else ""),
        )
        for each in row.stretches
    )
    note = f"{row.count} × {length_text(row.total_s / row.count)}"
    if running_s > 0:
        share = min(row.busy_s / running_s, 1.0)
        note += f", {share:.0%}" if share >= _LEAST_SHARE else ", <1%"
    mark = "" if row.named else "? "
    return BarRow(f"{' ' * depth}{mark}{name}", bars, note, shares=True, apart=row.each)


def _mark_rank(row: MarkRow) -> tuple[int, float, str]:
    rank = {"fatal": 0, "error": 0, "warn": 2}.get(row.name, 3)
    return (rank if row.kind is MarkKind.LOG else 1, row.first.timestamp(), row.name)


def _mark_row(row: MarkRow, axis: Axis) -> BarRow:
    bars = tuple(Bar(at := axis.at(each), at, row.kind.value) for each in row.times)
    label = f"{row.kind.value} {inert(row.name)}" if row.kind is MarkKind.LOG else inert(row.name)
    note = inert(row.text)
    if row.count > 1:
        note = f"{row.count} × {note}"
    return BarRow(label if row.named else f"? {label}", bars, note)
