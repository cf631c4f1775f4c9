"""A report on one screen: requested, used, wasted, and what to change. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import age, duration, moment
from lattice.base.style import Style
from lattice.base.table import UNKNOWN, Cell, Column, fields, table
from lattice.base.text import cells, cut, inert, wrapped
from lattice.domain.runsummary import Asked, Figure, RunSummary, Use, Waste
from lattice.features.report.model import Advice, Report

_GPU = frozenset({Use.GPU_UTILIZATION, Use.GPU_MEMORY_PEAK, Use.GPU_ENERGY})
_MOST_RUNS = 3
_QUIET = frozenset({Use.NODE_ENERGY, Use.OOM_KILLS})
"""Shown only if there is a value above zero."""
_NAMES = {
    Use.CPU_SECONDS: "CPU time",
    Use.CPU_EFFICIENCY: "CPU efficiency",
    Use.CPU_PEAK_CORES: "CPU busiest",
    Use.MEMORY_PEAK: "Memory peak",
    Use.GPU_UTILIZATION: "GPU utilization",
    Use.GPU_MEMORY_PEAK: "GPU memory peak",
    Use.GPU_ENERGY: "GPU energy",
    Use.NODE_ENERGY: "Node energy",
    Use.IO_READ: "Read",
    Use.IO_WRITTEN: "Written",
    Use.NETWORK_SENT: "Network sent",
    Use.NETWORK_RECEIVED: "Network received",
    Use.OOM_KILLS: "Killed for memory",
}
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def report_text(report: Report, style: Style, now: datetime) -> str:
    summary = report.summary
    reasons = _Reasons()
    parts = [
        _head(report, style),
        fields(_facts(report, style, now), style),
        "\n",
        table(_COLUMNS, _rows(summary, reasons), style),
    ]
    waste = _waste(summary)
    if waste:
        parts += ["\n", fields([("Left unused", waste)], style, indent="")]
    parts += [_below(text, style) for text in reasons.lines()]
    parts += ["\n", *(_advice(each, style) for each in report.advice)]
    parts.append(_closing(report, style))
    return "".join(parts)


_COLUMNS = [
    Column("USED"),
    Column("", right=True),
    Column("OF", right=True),
    Column("", right=True),
    Column("WHERE", least=12),
]


def _head(report: Report, style: Style) -> str:
    run = report.summary.run
    state = run.state.replace("_", " ")
    name, title = inert(report.id), inert(run.name)
    if style.width is not None:
        name = cut(name, 24)
        title = cut(title, max(style.width - cells(name) - cells(state) - 4, 8))
    colour = "green" if run.state == "running" else "dim" if run.state == "completed" else "red"
    return f"{style.paint(name, 'bold')}  {title}  {style.paint(state, colour)}\n"


def _runs(report: Report) -> str:
    named = [f"{inert(each.name) or inert(each.id)} ({inert(each.status)})" for each in report.runs]
    more = f" and {len(named) - _MOST_RUNS} more" if len(named) > _MOST_RUNS else ""
    return ", ".join(named[:_MOST_RUNS]) + more


def _facts(report: Report, style: Style, now: datetime) -> list[tuple[str, Cell]]:
    run, summary = report.summary.run, report.summary
    attempt = f"{run.attempt} of {report.attempts}" if report.attempts > 1 else ""
    until = moment(run.ended, style, now) if run.ended else "still running"
    return [
        ("Asked", _asked(summary.asked)),
        ("Ran", f"{moment(run.started, style, now)} to {until} on {run.nodes or UNKNOWN}"),
        ("Time", _time(summary)),
        ("Runs", _runs(report)),
        ("Attempt", attempt),
        ("Measured", _measured(report, style, now)),
    ]


def _asked(asked: Asked) -> str:
    parts = [_several(asked.nodes, "node")]
    for count, noun in ((asked.tasks, "task"), (asked.cpus, "CPU"), (asked.gpus, "GPU")):
        if count:
            parts.append(_several(count, noun))
    if asked.memory_per_node is not None:
        parts.append(f"{size(asked.memory_per_node)} a node")
    return ", ".join(parts)


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _time(summary: RunSummary) -> str:
    spent_s, limit_s = summary.run.wall_s, summary.asked.time_limit_s
    if not limit_s:
        return f"{duration(spent_s)}, no limit"
    return f"{duration(spent_s)} of {duration(limit_s)} ({percent(100 * spent_s / limit_s)})"


def _measured(report: Report, style: Style, now: datetime) -> str:
    origin, covered = report.summary.origin, report.summary.covered
    parts = [str(origin.source.value)]
    if origin.coverage.measured:
        parts.append(str(origin.coverage))
    if covered is not None:
        parts.append(f"{percent(100 * covered)} of nodes and time")
    if origin.resolution_s is not None:
        parts.append(f"every {origin.resolution_s:.0f} s")
    if origin.age_s is not None and not report.finished:
        parts.append(f"{age(origin.age_s)} old")
    if report.kept is not None:
        parts.append(f"kept since {moment(report.kept, style, now)}")
    if origin.reason:
        parts.append(inert(origin.reason))
    return ", ".join(parts)


class _Reasons:
    """Collects why figures are missing, each reason once."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def note(self, name: str, figure: Figure) -> None:
        reason = inert(figure.reason or "not measured")
        if figure.last_error:
            reason += f" ({inert(figure.last_error)})"
        self._names.setdefault(reason, []).append(name)

    def lines(self) -> list[str]:
        return [f"{UNKNOWN} {', '.join(names)}: {reason}" for reason, names in self._names.items()]


def _rows(summary: RunSummary, reasons: _Reasons) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for each in summary.used:
        use = Use(each.name) if each.name in _KNOWN else None
        if use is None or _left_out(use, each, summary.asked):
            continue
        name = _NAMES[use]
        if each.value is None:
            reasons.note(name, each)
        had = _had(use, summary)
        share = percent(100 * each.value / had) if each.value is not None and had else ""
        rows.append(
            [
                name,
                UNKNOWN if each.value is None else number(each.value, each.unit),
                " " if had is None else number(had, each.unit),
                share or " ",
                inert(_where(each)) or " ",
            ]
        )
    return rows


_KNOWN = frozenset(each.value for each in Use)


def _left_out(use: Use, figure: Figure, asked: Asked) -> bool:
    if use in _GPU and not asked.gpus and figure.value is None:
        return True
    return use in _QUIET and not figure.value


def _had(use: Use, summary: RunSummary) -> float | None:
    asked = summary.asked
    match use:
        case Use.CPU_SECONDS:
            return asked.cpus * summary.run.wall_s if asked.cpus else None
        case Use.CPU_PEAK_CORES:
            return float(asked.cpus) if asked.cpus else None
        case Use.MEMORY_PEAK:
            return asked.memory_per_node
        case Use.GPU_MEMORY_PEAK:
            return max(
                (each.memory_total for each in summary.per_gpu if each.memory_total), default=None
            )
    return None


def _where(figure: Figure) -> str:
    source = "" if figure.source == "host_local_probe" or figure.value is None else figure.source
    return ", ".join(each for each in (figure.of, source) if each)


def _waste(summary: RunSummary) -> str:
    parts = []
    forms = {
        Waste.CPU_CORE_HOURS: "{} core hours",
        Waste.GPU_HOURS: "{} GPU hours",
        Waste.MEMORY_PER_NODE: "{} a node",
        Waste.TIME: "{} of the time limit",
    }
    for name, form in forms.items():
        figure = summary.figure(name)
        if figure is None or not figure.value:
            continue
        if figure.unit == "h":
            parts.append(form.format(f"{figure.value:.1f}"))
        else:
            parts.append(form.format(number(figure.value, figure.unit)))
    return ", ".join(parts)


def _advice(advice: Advice, style: Style) -> str:
    mark = style.glyph("→ ", "> ")
    room = (style.width or 80) - len(mark)
    lines = wrapped(inert(advice.words), room)
    text = "".join(
        f"{style.paint(mark, 'yellow') if not index else '  '}{line}\n"
        for index, line in enumerate(lines)
    )
    return text + (f"  {style.paint(inert(advice.flag), 'bold')}\n" if advice.flag else "")


def _closing(report: Report, style: Style) -> str:
    if report.withheld:
        head = "No other advice" if report.advice else "No advice"
        return _below(f"{head}: {report.withheld}.", style)
    return "" if report.advice else "Nothing to change: it used what it asked for.\n"


def _below(text: str, style: Style) -> str:
    lines = wrapped(inert(text), style.width or 80)
    return "".join(style.paint(line, "dim") + "\n" for line in lines)


def number(value: float, unit: str) -> str:
    match unit:
        case "bytes":
            return size(value)
        case "s":
            return duration(value)
        case "%":
            return percent(value)
        case "J":
            return f"{value / 3.6e6:.2f} kWh" if value >= 3.6e5 else f"{value / 1000:.1f} kJ"
        case "cores":
            return f"{value:.1f} cores"
    return f"{value:.0f} {unit}".strip()


def size(size_bytes: float) -> str:
    """Format a size in the largest unit that keeps it at 1 or more."""
    value = size_bytes
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def percent(value: float) -> str:
    return f"{value:.1f} %" if value < 10 else f"{value:.0f} %"
