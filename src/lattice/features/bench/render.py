"""Captures and their differences as text. Pure."""

from __future__ import annotations

from statistics import fmean

from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.table import Cell, Column, fields, table
from lattice.base.text import inert, wrapped
from lattice.domain.machine_facts import FACTS, fact_lines
from lattice.domain.statistics.sureness import Sureness
from lattice.features.bench.model import (
    MEASURES,
    BenchComparison,
    Capture,
    FactDifference,
    MeasureDifference,
)

_SEEN = frozenset({Sureness.SURE, Sureness.LIKELY})


def capture_text(capture: Capture, style: Style) -> str:
    """The facts of a machine, then its figures."""
    facts: list[tuple[str, Cell]] = [(title, value) for title, value in fact_lines(capture.facts)]
    columns = [Column("MEASURE"), Column("MEAN", right=True), Column("FROM", right=True)]
    columns += [Column("TO", right=True), Column("BY", least=6)]
    rows: list[list[Cell]] = []
    notes = []
    for each in capture.measures:
        title, unit, _ = MEASURES[each.name]
        figures: list[Cell] = ["", "", ""]
        if each.samples:
            found = (fmean(each.samples), min(each.samples), max(each.samples))
            figures = [_figure(value, unit) for value in found]
        rows.append([title, *figures, each.tool])
        notes.append(each.reason)
    head = style.paint(inert(capture.name), "bold") + "\n"
    return head + fields(facts, style) + "\n" + _with_notes(columns, rows, style, notes)


def _with_notes(
    columns: list[Column], rows: list[list[Cell]], style: Style, notes: list[str]
) -> str:
    """A note below a row only where there is one."""
    return table(columns, rows, style, notes if any(notes) else ())


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "s":
        return number(value * 1e6, "µs")
    if unit == "bytes/s":
        return number(value, unit)
    return f"{value:,.0f}/s"


def comparison_text(comparison: BenchComparison, style: Style) -> str:
    """A line for each measure, then the facts that differ."""
    a, b = inert(comparison.a), inert(comparison.b)
    head = style.paint(f"{a} (A) and {b} (B)", "bold") + "\n"
    columns = [Column("MEASURE"), Column("A", right=True), Column("B", right=True)]
    columns += [Column("B AGAINST A", right=True), Column("95 %", right=True), Column("SURE")]
    rows: list[list[Cell]] = []
    notes = []
    for each in comparison.measures:
        rows.append(_row(each, style))
        notes.append(each.reason)
    text = head + _with_notes(columns, rows, style, notes)
    found = [
        f"{MEASURES[each.name][0]} {each.smallest_percent:.1f} %"
        for each in comparison.measures
        if each.sureness not in _SEEN and each.smallest_percent is not None
    ]
    if found:
        text += _lines(
            "Smallest differences that 80 of 100 such comparisons would find: "
            + ", ".join(found) + ".",
            style,
        )  # fmt: skip
    for note in comparison.notes:
        text += _lines(f"{note}.", style)
    return text + _facts(comparison.facts, style)


def _row(each: MeasureDifference, style: Style) -> list[Cell]:
    change, interval, sure = "", "", ""
    if each.percent is not None and each.percent_low is not None and each.percent_high is not None:
        change = _percent(each.percent, style)
        interval = f"{_percent(each.percent_low, style)} to {_percent(each.percent_high, style)}"
        sure = each.sureness.value
    worse = each.percent is not None and (each.percent < 0) is each.more_is_better
    colour = ("yellow" if worse else "green") if each.sureness in _SEEN else ""
    return [
        MEASURES[each.name][0],
        _figure(each.a, each.unit),
        _figure(each.b, each.unit),
        (change, colour),
        interval,
        sure,
    ]


def _percent(value: float, style: Style) -> str:
    digits = 0 if abs(value) >= 10 else 1
    text = f"{value:+.{digits}f} %"
    return text.replace("-", style.glyph("−", "-"))


def _facts(facts: tuple[FactDifference, ...], style: Style) -> str:
    if not facts:
        return "\nThe machines differ in no fact.\n"
    columns = [Column("DIFFERS"), Column("A", least=12), Column("B", least=12)]
    rows: list[list[Cell]] = [
        [FACTS[each.name][0], each.a or f"({each.a_reason})", each.b or f"({each.b_reason})"]
        for each in facts
    ]
    return "\n" + table(columns, rows, style)


def _lines(text: str, style: Style) -> str:
    pieces = wrapped(inert(text), style.width) if style.width is not None else [inert(text)]
    return "".join(style.paint(each, "dim") + "\n" for each in pieces)
