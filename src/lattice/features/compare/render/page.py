"""A comparison as one HTML page: no scripts, no external resources, all text escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from lattice.base.moment import duration
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.features.compare.model import Comparison, MetricComparison, RunLine
from lattice.features.compare.render.logged import has_runs, silent_lines, training_sentences
from lattice.features.compare.render.logged_page import training_part
from lattice.features.compare.render.markup import (
    Drawn,
    figure,
    html_table,
    html_text,
    paragraph,
)
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
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
)
_CSS = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.2rem .7rem;text-align:left;"
    "border-bottom:1px solid #ccc}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".told{font-weight:600}.note{color:#555}svg{max-width:100%;height:auto;background:#fafafa}"
    "caption{text-align:left;white-space:nowrap;color:#555}figure{margin:1rem 0}"
    "svg.sample{width:30px;height:8px;background:none;vertical-align:middle;margin-left:.7rem}"
)


def page(comparison: Comparison) -> str:
    trainings = comparison.trainings
    trained = trainings if trainings is not None and has_runs(trainings) else None
    parting = training_sentences(trained, _STYLE) if trained is not None else ()
    silent = silent_lines(trainings) if trainings is not None and trained is None else ()
    title = "Comparison of " + ", ".join(html_text(each.id) for each in comparison.runs)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        _POLICY,
        '<meta name="viewport" content="width=device-width">\n',
        f"<title>{title}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        *(paragraph(each, "told") for each in sentences(comparison, _STYLE)),
        *(paragraph(each, "told") for each in parting),
        _runs(comparison),
        _means(comparison),
        *(paragraph(each, "note") for each in missing_lines(comparison)),
        *(paragraph(each, "note") for each in unsteady_lines(comparison)),
        paragraph(power_line(comparison, _STYLE), "note"),
        *(_figure(comparison, each) for each in comparison.metrics),
        training_part(trained) if trained is not None else "",
        *(paragraph(each, "note") for each in silent),
        _settings(comparison),
        *(paragraph(each, "note") for each in unset_lines(comparison)),
        *(paragraph(each, "note") for each in comparison.notes),
        paragraph(f"Taken {comparison.taken.isoformat()}.", "note"),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


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
    return html_table("The runs; A is the baseline", heading, rows)


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
    return html_table("Means in the steady state", heading, rows) if rows else ""


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
        return paragraph("Nothing that was asked for differs.", "note")
    return html_table("What differs", ("", *(run.label for run in comparison.runs)), rows)


def _figure(comparison: Comparison, row: MetricComparison) -> str:
    drawn = [each for each in row.lines if each.points]
    if not drawn:
        return ""
    span_s = max(each.points[-1].at_s + each.step_s / 2 for each in drawn)
    top = max(point.value for each in drawn for point in each.points) or 1.0
    caption = html_text(
        f"{row.metric.value} from 0 to {number(top, row.unit)} over {duration(span_s)}"
    )
    pieces = [_pieces(each, span_s, top) for each in row.lines]
    return figure(caption, pieces, [run.label for run in comparison.runs])


def _pieces(line: RunLine, span_s: float, top: float) -> Iterable[Drawn]:
    """Split a line at gaps."""
    piece: list[tuple[float, float]] = []
    before_s: float | None = None
    for point in line.points:
        if before_s is not None and point.at_s - before_s > 1.5 * line.step_s:
            yield piece
            piece = []
        piece.append((point.at_s / span_s, point.value / top))
        before_s = point.at_s
    yield piece
