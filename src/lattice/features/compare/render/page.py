"""A comparison as one HTML page: no scripts, no external resources, all text escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from lattice.base.moment import duration
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.table import UNKNOWN
from lattice.base.text import inert
from lattice.features.compare.model import Comparison, MetricComparison, RunLine
from lattice.features.compare.render.sentences import (
    interval,
    missing_lines,
    power_line,
    sentences,
    size,
    unset_lines,
    unsteady_lines,
)

_STYLE = Style()
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
_DASHES = ("", "6 3", "2 3", "10 3 2 3", "1 5", "12 4", "4 4", "8 2 2 2")
_WIDTH, _HEIGHT = 720, 160
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
)
_CSS = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.2rem .7rem;text-align:left;"
    "border-bottom:1px solid #ccc}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".told{font-weight:600}.note{color:#555}svg{max-width:100%;height:auto;background:#fafafa}"
)


def page(comparison: Comparison) -> str:
    title = "Comparison of " + ", ".join(_text(each.id) for each in comparison.runs)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        _POLICY,
        '<meta name="viewport" content="width=device-width">\n',
        f"<title>{title}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        *(_paragraph(each, "told") for each in sentences(comparison, _STYLE)),
        _runs(comparison),
        _means(comparison),
        *(_paragraph(each, "note") for each in missing_lines(comparison)),
        *(_paragraph(each, "note") for each in unsteady_lines(comparison)),
        _paragraph(power_line(comparison, _STYLE), "note"),
        *(_figure(comparison, each) for each in comparison.metrics),
        _settings(comparison),
        *(_paragraph(each, "note") for each in unset_lines(comparison)),
        *(_paragraph(each, "note") for each in comparison.notes),
        _paragraph(f"Taken {comparison.taken.isoformat()}.", "note"),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _text(text: str) -> str:
    return escape(inert(text), quote=True)


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{_text(text)}</p>\n' if text else ""


def _table(caption: str, heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(each)}</th>' for each in heading)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(each) or UNKNOWN}</td>" for each in row) + "</tr>\n"
        for row in rows
    )
    return (
        f"<table>\n<caption>{_text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n"
    )


def _runs(comparison: Comparison) -> str:
    rows = (
        (
            each.label,
            each.id,
            each.name,
            each.state.value,
            each.started.isoformat(),
            duration(each.length_s),
            each.nodes,
            f"{each.origin.source.value} {each.origin.via}".strip(),
        )
        for each in comparison.runs
    )
    heading = ("run", "id", "name", "state", "started", "time", "nodes", "measured by")
    return _table("The runs; A is the baseline", heading, rows)


def _means(comparison: Comparison) -> str:
    rows = []
    for row in comparison.metrics:
        for at, one in enumerate(row.differences, 1):
            change, parting = one.change, one.parting
            parted = "" if parting is None else duration(parting.at_s)
            rows.append(
                (
                    row.metric.value,
                    _mean(row, 0),
                    one.label,
                    _mean(row, at),
                    size(change, row.unit, _STYLE) if change is not None else "",
                    interval(change, row.unit, _STYLE) if change is not None else "",
                    one.sureness.value,
                    "always" if parting is not None and parting.whole else parted or " ",
                )
            )
    heading = ("metric", "A", "run", "mean", "difference", "95 % interval", "sure", "parted")
    return _table("Means in the steady state", heading, rows) if rows else ""


def _mean(row: MetricComparison, at: int) -> str:
    mean = row.levels[at].mean
    return "" if mean is None else number(mean, row.unit)


def _settings(comparison: Comparison) -> str:
    rows = [
        (each.name, *(value.value or "" for value in each.values))
        for each in comparison.settings
        if each.differs
    ]
    if not rows:
        return _paragraph("Nothing that was asked for differs.", "note")
    return _table("What differs", ("", *(run.label for run in comparison.runs)), rows)


def _figure(comparison: Comparison, row: MetricComparison) -> str:
    drawn = [each for each in row.lines if each.points]
    if not drawn:
        return ""
    span_s = max(each.points[-1].at_s + each.step_s / 2 for each in drawn)
    top = max(point.value for each in drawn for point in each.points) or 1.0
    lines = "".join(
        f'<polyline fill="none" stroke="{_COLOURS[number_]}" stroke-width="1.5" '
        f'stroke-dasharray="{_DASHES[number_]}" points="{points}"/>'
        for number_, each in enumerate(row.lines)
        for points in _pieces(each, span_s, top)
    )
    legend = ", ".join(
        f'<span style="color:{_COLOURS[number_]}">{_text(run.label)}</span> '
        f"{'solid' if not _DASHES[number_] else 'dashed ' + _DASHES[number_]}"
        for number_, run in enumerate(comparison.runs)
    )
    caption = f"{row.metric.value} from 0 to {number(top, row.unit)} over {duration(span_s)}"
    return (
        f'<figure>\n<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(caption)}">'
        f"{lines}</svg>\n<figcaption>{_text(caption)}: {legend}</figcaption>\n</figure>\n"
    )


def _pieces(line: RunLine, span_s: float, top: float) -> Iterable[str]:
    """Split a line at gaps."""
    piece: list[str] = []
    before_s: float | None = None
    for point in line.points:
        if before_s is not None and point.at_s - before_s > 1.5 * line.step_s:
            yield " ".join(piece)
            piece = []
        across = point.at_s / span_s * _WIDTH
        down = _HEIGHT * (1 - min(max(point.value / top, 0.0), 1.0))
        piece.append(f"{across:.1f},{down:.1f}")
        before_s = point.at_s
    if piece:
        yield " ".join(piece)
