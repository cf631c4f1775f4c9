"""A timeline for a terminal: a row for each attempt, run, event and line. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.text import cells, cut, inert
from lattice.features.timeline.model import Timeline
from lattice.features.timeline.render.rows import Bar, BarRow, LineRow, bar_rows, line_rows

_LABEL, _NOTE = 22, 24
_USUAL, _LEAST, _MOST = 100, 20, 120
_SIGNS = {
    "waiting": ("·", ".", "dim"),
    "starting": ("~", "~", "yellow"),
    "running": ("━", "=", "green"),
    "ending": ("╌", "-", "yellow"),
    "run": ("■", "#", "cyan"),
    "alert": ("▲", "!", "red"),
    "job": ("●", "*", "cyan"),
    "session": ("▬", "+", "blue"),
    "read": ("◆", "o", "blue"),
    "preempted": ("╳", "X", "red"),
}
_LEVELS, _PLAIN_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


def timeline_text(timeline: Timeline, style: Style, now: datetime) -> str:
    """Return the whole text."""
    columns = min(max((style.width or _USUAL) - _LABEL - _NOTE, _LEAST), _MOST)
    lines = [_head(timeline, style, now)]
    bars = bar_rows(timeline)
    lines += [_bar_row(each, columns, style) for each in bars]
    lines += [_line_row(each, columns, style) for each in line_rows(timeline)]
    lines.append(_axis(timeline, columns, style, now))
    kinds = dict.fromkeys(bar.kind for row in bars for bar in row.bars)
    lines.append(_legend(kinds, style))
    if timeline.left_out:
        lines.append(f"{timeline.left_out} older attempts are not shown.")
    lines += [style.paint(inert(each), "dim") for each in timeline.missing]
    return "".join(f"{each.rstrip()}\n" for each in lines)


def _head(timeline: Timeline, style: Style, now: datetime) -> str:
    begin, until = moment(timeline.begin, style, now), moment(timeline.until, style, now)
    length = duration((timeline.until - timeline.begin).total_seconds())
    name = cut(inert(timeline.name), 30)
    return (
        f"{style.paint(inert(timeline.id), 'bold')}  {name}  {timeline.state.value}  "
        f"{begin} to {until} ({length})"
    )


def _bar_row(row: BarRow, columns: int, style: Style) -> str:
    signs: list[str] = [" "] * columns
    for bar in row.bars:
        sign, plain, colour = _SIGNS[bar.kind]
        for column in _columns(bar, columns):
            signs[column] = style.paint(style.glyph(sign, plain), colour)
    return f"{_label(row.label)}{''.join(signs)} {cut(row.note, _NOTE - 1)}"


def _columns(bar: Bar, columns: int) -> range:
    first = min(int(bar.begin * columns), columns - 1)
    last = min(max(int(bar.end * columns + 0.5) - 1, first), columns - 1)
    return range(first, last + 1)


def _line_row(row: LineRow, columns: int, style: Style) -> str:
    found: list[list[float]] = [[] for _ in range(columns)]
    before: tuple[float, float] | None = None
    for across, value in row.points:
        column = min(int(across * columns), columns - 1)
        found[column].append(value)
        if before is not None and across - before[0] <= row.gap:
            for between in range(int(before[0] * columns) + 1, column):
                found[between].append(before[1])
        before = (across, value)
    levels = style.glyph(_LEVELS, _PLAIN_LEVELS)
    span = row.high - row.low
    text = ""
    for values in found:
        if not values:
            text += " "
            continue
        share = (sum(values) / len(values) - row.low) / span if span > 0 else 0.0
        text += levels[min(int(share * len(levels)), len(levels) - 1)]
    return f"{_label(row.label)}{style.paint(text, 'cyan')} {cut(row.bounds, _NOTE - 1)}"


def _axis(timeline: Timeline, columns: int, style: Style, now: datetime) -> str:
    begin, until = moment(timeline.begin, style, now), moment(timeline.until, style, now)
    room = columns - cells(begin)
    return " " * _LABEL + begin + (until.rjust(room) if cells(until) < room else "")


def _legend(kinds: dict[str, None], style: Style) -> str:
    parts = []
    for kind in kinds:
        sign, plain, colour = _SIGNS[kind]
        parts.append(f"{style.paint(style.glyph(sign, plain), colour)} {kind}")
    return " " * _LABEL + "  ".join(parts)


def _label(text: str) -> str:
    shown = cut(text, _LABEL - 2)
    return shown + " " * (_LABEL - cells(shown))
