"""A timeline for a terminal: a row for each attempt, run, event and line. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.text import cells, cut, inert
from lattice.features.timeline.model import Timeline
from lattice.features.timeline.render.bars import Bar, BarRow
from lattice.features.timeline.render.rows import LineRow, bar_rows, line_rows

_LABEL, _NOTE = 22, 24
_USUAL, _LEAST, _MOST = 100, 20, 120
_SIGNS = {
    "waiting": ("·", ".", "dim"),
    "starting": ("~", "~", "yellow"),
    "running": ("━", "=", "green"),
    "ending": ("╌", "-", "yellow"),
    "run": ("■", "#", "cyan"),
    "epoch": ("█", "#", "green"),
    "checkpoint": ("█", "#", "yellow"),
    "span": ("█", "#", "cyan"),
    "event": ("●", "*", "blue"),
    "log": ("•", ":", "yellow"),
    "alert": ("▲", "!", "red"),
    "job": ("●", "*", "cyan"),
    "mode": ("◇", "m", "blue"),
    "lost_output": ("▽", "v", "yellow"),
    "session": ("▬", "+", "blue"),
    "read": ("◆", "o", "blue"),
    "preempted": ("╳", "X", "red"),
}
_VISIBLE, _HALF = 0.01, 0.5
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
    if row.shares:
        return _share_row(row, columns, style)
    signs: list[str] = [" "] * columns
    for bar in row.bars:
        sign, plain, colour = _SIGNS[bar.kind]
        for column in _columns(bar, columns):
            signs[column] = style.paint(style.glyph(sign, plain), colour)
    return f"{_label(row.label)}{''.join(signs)} {cut(row.note, _NOTE - 1)}"


def _share_row(row: BarRow, columns: int, style: Style) -> str:
    """Each column as high as the share of its time that is covered."""
    shares = [0.0] * columns
    begun: set[int] = set()
    for bar in row.bars:
        first, last = bar.begin * columns, bar.end * columns
        for column in range(min(int(first), columns - 1), min(int(last), columns - 1) + 1):
            covered = max(min(last, column + 1) - max(first, column), 0.0)
            # What is too short for a column is visible all the same.
            shares[column] += max(covered, _VISIBLE if column == int(first) else 0.0) * bar.share
        begun.add(min(int(first), columns - 1))
    levels = style.glyph(_LEVELS, _PLAIN_LEVELS)
    text = ""
    # Many short ones would be nothing but beginnings.
    apart = row.apart and len(row.bars) * 3 <= columns
    for column, share in enumerate(shares):
        follows = column > 0 and shares[column - 1] > _HALF and share > _HALF
        if share <= 0.0:
            text += " "
        elif apart and column in begun and follows:
            text += style.glyph("▐", "|")
        else:
            text += levels[min(int(share * len(levels)), len(levels) - 1)]
    colour = _SIGNS[row.bars[0].kind][2] if row.bars else ""
    return f"{_label(row.label)}{style.paint(text, colour)} {cut(row.note, _NOTE - 1)}"


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
