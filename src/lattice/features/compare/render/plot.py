"""One metric of several runs as a text plot, with a sign and a colour per run. Pure.

Each run has its own sign, so the plot is readable without colours. Overlapping runs have a common
sign. The size is fixed and fits 80 columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice.base.moment import duration
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.features.compare.model import Comparison, MetricComparison, RunLine

COLUMNS, ROWS = 64, 9
_MARGIN = 9
_SIGNS = ("●", "×", "+", "○", "◆", "△", "□", "*")
_PLAIN = ("o", "x", "+", "a", "#", "^", "=", "*")
_COLOURS = ("cyan", "yellow", "green", "red", "blue", "bold", "dim", "cyan")
_SEVERAL, _SEVERAL_PLAIN = "▒", "&"
_FULL = 100.0


def signs(style: Style) -> Sequence[str]:
    """Return the signs by run number."""
    return _SIGNS if style.glyphs else _PLAIN


def plot(comparison: Comparison, row: MetricComparison, style: Style) -> str:
    """Draw the time that all runs have, each from its start; empty without points."""
    drawn = [each for each in row.lines if each.points]
    if not drawn:
        return ""
    span_s = min(each.points[-1].at_s + each.step_s / 2 for each in drawn)
    # A percentage has a fixed scale: a line at 50 % is half way up.
    top = max((point.value for each in drawn for point in each.points), default=0.0)
    top = max(top, _FULL) if row.unit == "%" and top <= _FULL else top or 1.0
    grid = _grid(row.lines, span_s, top)
    lines = [_legend(comparison, row, style)]
    for number_, cells in enumerate(grid):
        label = {0: number(top, row.unit), ROWS - 1: "0"}.get(number_, "")
        if number_ == ROWS // 2:
            label = number(top / 2, row.unit)
        body = "".join(_sign(each, style) for each in cells)
        lines.append(f"{label:>{_MARGIN - 2}} {style.glyph('│', '|')}{body}".rstrip(" "))
    lines.append(" " * (_MARGIN - 1) + style.glyph("└", "+") + style.glyph("─", "-") * COLUMNS)
    lines += _below(row, span_s)
    return "\n".join(lines) + "\n"


def _grid(lines: Sequence[RunLine], span_s: float, top: float) -> list[list[tuple[int, ...]]]:
    grid: list[list[tuple[int, ...]]] = [[() for _ in range(COLUMNS)] for _ in range(ROWS)]
    for number_, line in enumerate(lines):
        for point in line.points:
            first = int((point.at_s - line.step_s / 2) / span_s * COLUMNS)
            last = int((point.at_s + line.step_s / 2) / span_s * COLUMNS - 1e-9)
            height = min(max(point.value / top, 0.0), 1.0)
            at = ROWS - 1 - round(height * (ROWS - 1))
            for column in range(max(first, 0), min(max(last, first), COLUMNS - 1) + 1):
                if number_ not in grid[at][column]:
                    grid[at][column] = (*grid[at][column], number_)
    return grid


def _sign(runs: tuple[int, ...], style: Style) -> str:
    if not runs:
        return " "
    if len(runs) > 1:
        return style.glyph(_SEVERAL, _SEVERAL_PLAIN)
    (run,) = runs
    return style.paint(signs(style)[run], _COLOURS[run])


def _legend(comparison: Comparison, row: MetricComparison, style: Style) -> str:
    parts = [
        f"{style.paint(signs(style)[number_], _COLOURS[number_])} {run.label}"
        for number_, run in enumerate(comparison.runs)
        if row.lines[number_].points
    ]
    several = f"{style.glyph(_SEVERAL, _SEVERAL_PLAIN)} several"
    return f"{style.paint(row.metric.value, 'bold')}  {'  '.join([*parts, several])}"


def _below(row: MetricComparison, span_s: float) -> list[str]:
    begin, end = duration(0), duration(span_s)
    lines = [" " * _MARGIN + begin + end.rjust(COLUMNS - len(begin))]
    parted = [
        (each.parting.at_s, each.label)
        for each in row.differences
        if each.parting is not None and 0 < each.parting.at_s < span_s
    ]
    for at_s, label in parted:
        column = min(int(at_s / span_s * COLUMNS), COLUMNS - 1)
        note = f"^ {label} parts at {duration(at_s)}"
        if column + len(note) > COLUMNS:
            note = f"{label} parts at {duration(at_s)} ^"
            lines.append(" " * _MARGIN + note.rjust(column + 1))
        else:
            lines.append(" " * (_MARGIN + column) + note)
    return lines
