"""A timeline as one HTML file: no scripts, no external resources, all text escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape

from lattice.base.moment import duration
from lattice.base.text import inert
from lattice.features.timeline.model import OwnTimeline, Timeline, TimelineEvent
from lattice.features.timeline.render.bars import Axis, Bar, BarRow
from lattice.features.timeline.render.own_rows import length_text
from lattice.features.timeline.render.rows import LineRow, bar_rows, line_rows

_COLOURS = {
    "waiting": "#bbbbbb",
    "starting": "#e69f00",
    "running": "#009e73",
    "ending": "#8c6d1f",
    "run": "#0072b2",
    "epoch": "#117733",
    "checkpoint": "#e69f00",
    "span": "#44aa99",
    "event": "#332288",
    "log": "#aa4499",
    "alert": "#d55e00",
    "job": "#117733",
    "mode": "#332288",
    "lost_output": "#8c6d1f",
    "session": "#56b4e9",
    "read": "#cc79a7",
    "preempted": "#d55e00",
}
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
)
_CSS = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.2rem .7rem;text-align:left;"
    "border-bottom:1px solid #ccc}.note{color:#555}svg{width:100%;height:auto;background:#fafafa}"
    "svg text{font:12px system-ui,sans-serif;fill:#222}"
    "caption{text-align:left;white-space:nowrap;color:#555}td:last-child{overflow-wrap:anywhere}"
)
_LEFT, _AXIS, _RIGHT = 190, 700, 210
_BAR, _LINE, _TOP = 22, 64, 26
_TICKS, _INDENT = 6, 10


def page(timeline: Timeline) -> str:
    """Return the file."""
    title = f"Timeline of {_text(timeline.id)} {_text(timeline.name)}"
    length = duration((timeline.until - timeline.begin).total_seconds())
    shown = f"{timeline.begin.isoformat()} to {timeline.until.isoformat()} ({length})"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        _POLICY,
        '<meta name="viewport" content="width=device-width">\n',
        f"<title>{title}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        _paragraph(f"{timeline.state.value}, of {timeline.user}: {shown}"),
        _drawing(timeline),
        _legend(timeline),
        _attempts(timeline),
        _runs(timeline),
        _own(timeline) if isinstance(timeline, OwnTimeline) else "",
        _events(timeline.events),
        *(_paragraph(each) for each in timeline.missing),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _drawing(timeline: Timeline) -> str:
    bars, lines = bar_rows(timeline), line_rows(timeline)
    height = _TOP + _BAR * len(bars) + _LINE * len(lines) + 8
    width = _LEFT + _AXIS + _RIGHT
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="The timeline">\n']
    parts += _ticks(timeline, height)
    down = _TOP
    for bar in bars:
        parts += _bar_row(bar, down)
        down += _BAR
    for line in lines:
        parts += _line_row(line, down)
        down += _LINE
    return "".join((*parts, "</svg>\n"))


def _ticks(timeline: Timeline, height: int) -> Iterable[str]:
    axis = Axis(timeline)
    for tick in range(_TICKS + 1):
        across = _LEFT + _AXIS * tick / _TICKS
        text = duration(axis.span_s * tick / _TICKS)
        yield f'<path d="M{across:.1f} 18V{height}" stroke="#ddd"/>\n'
        yield f'<text x="{across:.1f}" y="13" text-anchor="middle">{text}</text>\n'


def _bar_row(row: BarRow, down: int) -> Iterable[str]:
    yield _label(row.label, row.note, down + 15)
    for bar in row.bars:
        across = _LEFT + bar.begin * _AXIS
        width = max((bar.end - bar.begin) * _AXIS, 2.0)
        yield (
            f'<rect x="{across:.1f}" y="{down + 4}" width="{width:.1f}" height="{_BAR - 8}" '
            f'fill="{_COLOURS[bar.kind]}"{_opacity(row, bar)}>'
            f"<title>{_text(bar.title or bar.kind)}</title></rect>\n"
        )


def _opacity(row: BarRow, bar: Bar) -> str:
    """A share is a shade; what begins anew has an edge."""
    edge = ' stroke="#fafafa" stroke-width="0.7"' if row.apart else ""
    return f' fill-opacity="{0.25 + 0.75 * bar.share:.2f}"{edge}' if row.shares else ""


def _line_row(row: LineRow, down: int) -> Iterable[str]:
    yield _label(row.label, row.bounds, down + _LINE / 2)
    # Where the lowest value is, so that nobody takes a line for the next row's.
    yield f'<path d="M{_LEFT} {down + _LINE - 8}H{_LEFT + _AXIS}" stroke="#ddd"/>\n'
    for piece in _pieces(row, down):
        if " " in piece:
            yield f'<polyline fill="none" stroke="#0072b2" points="{piece}"/>\n'
        else:
            across, _, height = piece.partition(",")
            yield f'<circle cx="{across}" cy="{height}" r="1.5" fill="#0072b2"/>\n'


def _pieces(row: LineRow, down: int) -> Iterable[str]:
    """Split a line at gaps."""
    piece: list[str] = []
    before: float | None = None
    span = row.high - row.low or 1.0
    for across, value in row.points:
        if before is not None and across - before > row.gap:
            yield " ".join(piece)
            piece = []
        share = min(max((value - row.low) / span, 0.0), 1.0)
        height = down + 4 + (_LINE - 12) * (1 - share)
        piece.append(f"{_LEFT + across * _AXIS:.1f},{height:.1f}")
        before = across
    if piece:
        yield " ".join(piece)


def _label(label: str, note: str, down: float) -> str:
    name = label.lstrip(" ")
    across = 4 + _INDENT * (len(label) - len(name))
    return (
        f'<text x="{across}" y="{down:.0f}">{_text(name[:28])}<title>{_text(name)}</title></text>\n'
        f'<text x="{_LEFT + _AXIS + 8}" y="{down:.0f}">{_text(note[:32])}'
        f"<title>{_text(note)}</title></text>\n"
    )


def _legend(timeline: Timeline) -> str:
    kinds = dict.fromkeys(bar.kind for row in bar_rows(timeline) for bar in row.bars)
    parts = ", ".join(f'<span style="color:{_COLOURS[each]}">■</span> {each}' for each in kinds)
    return f'<p class="note">{parts}</p>\n' if parts else ""


def _attempts(timeline: Timeline) -> str:
    rows = (
        (
            str(each.number),
            each.state.value,
            _time(each.submitted),
            _time(each.started) if each.started else "",
            _time(each.ended) if each.ended else "",
            each.nodes,
        )
        for each in timeline.attempts
    )
    heading = ("attempt", "state", "submitted", "started", "ended", "nodes")
    return _table("Attempts", heading, rows)


def _runs(timeline: Timeline) -> str:
    if not timeline.runs:
        return ""
    rows = (
        (
            each.name,
            each.experiment,
            each.status,
            _time(each.started),
            _time(each.ended) if each.ended else "",
            ", ".join(map(str, each.attempts)),
            ", ".join(f"{one.name} {one.value:.4g}" for one in each.metrics),
            each.id,
        )
        for each in timeline.runs
    )
    heading = ("run", "experiment", "status", "started", "ended", "attempts", "newest", "id")
    return _table("Training runs, as they say themselves", heading, rows)


def _own(timeline: OwnTimeline) -> str:
    spans = (
        (
            "· " * each.depth + each.name,
            "this job" if each.named else "no job",
            f"{each.count}" + (f" of rank {each.rank}" if each.rank is not None else ""),
            length_text(each.total_s / each.count),
            length_text(each.longest_s),
            length_text(each.busy_s),
            _time(each.first),
            _time(each.last),
        )
        for each in timeline.spans
    )
    marks = (
        (
            each.kind.value,
            each.name,
            "this job" if each.named else "no job",
            str(each.count),
            _time(each.first),
            _time(each.last),
            each.text,
        )
        for each in timeline.marks
    )
    span_names = ("span", "names", "count", "mean", "longest", "running", "from", "until")
    mark_names = ("", "name", "names", "count", "first", "last", "newest")
    text = _table("Spans, as the job says itself", span_names, spans) if timeline.spans else ""
    return text + (_table("What the job has noted", mark_names, marks) if timeline.marks else "")


def _events(events: Iterable[TimelineEvent]) -> str:
    rows = [
        (
            each.kind.value,
            _time(each.time),
            "it lasts" if each.lasts else _time(each.ended) if each.ended else "",
            each.node,
            each.text,
        )
        for each in events
    ]
    heading = ("event", "from", "until", "node", "")
    return _table("Events", heading, rows) if rows else ""


def _table(caption: str, heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(each)}</th>' for each in heading)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(each)}</td>" for each in row) + "</tr>\n" for row in rows
    )
    return (
        f"<table>\n<caption>{_text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n"
    )


def _paragraph(text: str) -> str:
    return f'<p class="note">{_text(text)}</p>\n' if text else ""


def _text(text: str) -> str:
    return escape(inert(text), quote=True)


def _time(time: datetime) -> str:
    """To the second: a row has several of them."""
    return time.isoformat(timespec="seconds")
