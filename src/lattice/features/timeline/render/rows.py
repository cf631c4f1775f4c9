"""The rows of a timeline, the same in text and on a page. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lattice.base.quantity import number
from lattice.base.text import inert
from lattice.features.timeline.model import (
    EventKind,
    OwnTimeline,
    Timeline,
    TimelineEvent,
    TimelineLine,
    TimelinePoint,
)
from lattice.features.timeline.render.bars import Axis, Bar, BarRow
from lattice.features.timeline.render.own_rows import own_rows

MOST_EVENT_ROWS = 12
_NOTED = frozenset(
    each.value for each in (EventKind.ALERT, EventKind.JOB, EventKind.MODE, EventKind.LOST_OUTPUT)
)
"""Kinds whose newest text stands beside the row."""
_FULL = 100.0


@dataclass(frozen=True, slots=True)
class LineRow:
    """One row with a line: points at 0 to 1, and the bounds of the values."""

    label: str
    points: tuple[tuple[float, float], ...]
    low: float
    high: float
    unit: str
    gap: float
    """Points that are further apart than this are not joined."""

    @property
    def bounds(self) -> str:
        return f"{value_text(self.low, self.unit)} to {value_text(self.high, self.unit)}"


def value_text(value: float, unit: str) -> str:
    """A value with its unit; what a run has logged has none."""
    return number(value, unit) if unit else f"{value:.4g}"


def bar_rows(timeline: Timeline) -> tuple[BarRow, ...]:
    """Attempts, runs, what the job has written of itself, and events."""
    axis = Axis(timeline)
    own = own_rows(timeline, axis) if isinstance(timeline, OwnTimeline) else ()
    return (*_attempts(timeline, axis), *_runs(timeline, axis), *own, *_events(timeline, axis))


def line_rows(timeline: Timeline) -> tuple[LineRow, ...]:
    """Measured lines, one for all attempts, and then those of runs."""
    axis = Axis(timeline)
    measured: dict[str, list[TimelineLine]] = {}
    for each in timeline.lines:
        if not each.run:
            measured.setdefault(each.name, []).append(each)
    names = {each.id: inert(each.name) or inert(each.id)[:8] for each in timeline.runs}
    rows = [_line(inert(name), lines, axis) for name, lines in measured.items()]
    rows += [
        _line(f"{names.get(each.run, '')} {inert(each.name)}".strip(), [each], axis)
        for each in timeline.lines
        if each.run
    ]
    return tuple(each for each in rows if each.points)


def _attempts(timeline: Timeline, axis: Axis) -> Iterable[BarRow]:
    for attempt in timeline.attempts:
        bars = tuple(
            Bar(axis.at(each.started), axis.at(each.ended), each.kind.value)
            for each in timeline.phases
            if each.attempt == attempt.number
        )
        note = attempt.state.value + (f", {inert(attempt.nodes)}" if attempt.nodes else "")
        yield BarRow(f"attempt {attempt.number}", bars, note)


def _runs(timeline: Timeline, axis: Axis) -> Iterable[BarRow]:
    for run in timeline.runs:
        last = max((each.time for each in run.metrics), default=run.started)
        # A run of a finished job can't go on: it was killed, and could not say so.
        ended = run.ended or (last if timeline.finished else None)
        bar = Bar(axis.at(run.started), axis.at(ended), "run")
        yield BarRow(f"run {inert(run.name) or inert(run.id)[:8]}", (bar,), inert(run.status))


def _events(timeline: Timeline, axis: Axis) -> Iterable[BarRow]:
    rows: dict[tuple[str, str], list[TimelineEvent]] = {}
    for each in timeline.events:
        key = each.text if each.kind is EventKind.READ else each.node
        rows.setdefault((each.kind.value, key), []).append(each)
    for (kind, key), events in [*rows.items()][:MOST_EVENT_ROWS]:
        bars = tuple(
            Bar(
                axis.at(each.time),
                1.0 if each.lasts else axis.at(each.ended or each.time),
                kind,
            )
            for each in events
        )
        note = inert(events[-1].text) if kind in _NOTED else ""
        yield BarRow(f"{kind} {inert(key)}".strip(), bars, note)
    if len(rows) > MOST_EVENT_ROWS:
        yield BarRow(f"{len(rows) - MOST_EVENT_ROWS} more rows", (), "in -o json")


def _line(label: str, lines: list[TimelineLine], axis: Axis) -> LineRow:
    points: list[TimelinePoint] = [point for each in lines for point in each.points]
    points.sort(key=lambda each: each.time)
    values = [each.value for each in points]
    low, high = min(values, default=0.0), max(values, default=0.0)
    unit = lines[0].unit
    if unit:
        # What is measured begins at 0, and percents of one thing end at 100.
        low, high = min(low, 0.0), (_FULL if unit == "%" and high <= _FULL else high)
    steps_s = [each.step_s for each in lines if each.step_s]
    gap = 1.5 * max(steps_s) / axis.span_s if steps_s else 1.0
    placed = tuple((axis.at(each.time), each.value) for each in points)
    return LineRow(label, placed, low, high, unit, gap)
