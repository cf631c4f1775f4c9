"""One line per event: time, sign, severity, subject, start and remedy. Pure.

In a pipe an event is one line of any length; on a terminal it is wrapped and indented.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.text import cells, inert, wrapped
from lattice.domain.alert import Phase, Severity
from lattice.domain.measured import Shown
from lattice.domain.nodeset import NodeSet
from lattice.features.watch.model import (
    NodeWord,
    WatchAlert,
    WatchEnd,
    WatchFigure,
    WatchMeasured,
    WatchMode,
    WatchNode,
    WatchNote,
    WatchNoteKind,
    WatchProgress,
    WatchRecord,
    WatchState,
)

MISSING = "—"
_NAMES = {
    Shown.GPU_UTILIZATION: "gpu",
    Shown.GPU_MEMORY_USED: "gpu mem",
    Shown.GPU_POWER_DRAW: "power",
    Shown.CPU_UTILIZATION: "cpu",
    Shown.MEMORY_USED: "mem",
    Shown.NETWORK_TX_BYTES: "sent",
    Shown.NETWORK_RX_BYTES: "received",
    Shown.IO_READ_BYTES: "read",
    Shown.IO_WRITE_BYTES: "written",
    Shown.IO_LATENCY_P99: "io p99",
    Shown.GPU_TEMPERATURE: "gpu temp",
    Shown.GPU_SM_OCCUPANCY: "sm occupancy",
    Shown.MEMORY_CACHE: "cache",
    Shown.MEMORY_LIMIT: "mem limit",
    Shown.OOM_KILLS: "oom kills",
}
FEWEST = 3
"""Fewer events are shown one by one."""
_COLOURS = {"CRITICAL": "red bold", "WARNING": "yellow", "resolved": "green", "unknown": "cyan"}


def folded(records: Iterable[WatchRecord]) -> list[tuple[WatchRecord, ...]]:
    """Group similar records, in the order in which each kind first came."""
    groups: dict[object, list[WatchRecord]] = {}
    for at, each in enumerate(records):
        groups.setdefault(_kind(each, at), []).append(each)
    found: list[tuple[WatchRecord, ...]] = []
    for group in groups.values():
        found += [tuple(group)] if len(group) >= FEWEST else [(each,) for each in group]
    return found


def _kind(record: WatchRecord, at: int) -> object:
    if isinstance(record, WatchAlert):
        return record.rule, record.phase, record.severity
    if isinstance(record, WatchNode):
        return record.word, record.reason
    return at


def nodes_of(records: Sequence[WatchAlert] | Sequence[WatchNode]) -> tuple[int, str]:
    """Return the number of nodes, and their names."""
    names = list(dict.fromkeys(each.node for each in records))
    try:
        return len(names), inert(NodeSet(names).fold())
    except ValueError:
        return len(names), ",".join(inert(each) for each in names)


def where(alerts: Sequence[WatchAlert]) -> str:
    """Such as `gpu_idle on 37 nodes, n[1-37]`; with a count if it differs from that of nodes."""
    count, nodes = nodes_of(alerts)
    on = nodes if count == 1 else f"{count} nodes, {nodes}"
    times = f" {len(alerts)} times" if len(alerts) != count else ""
    return f"{inert(alerts[0].rule)}{times} on {on}"


def values(alerts: Sequence[WatchAlert]) -> str:
    """Such as `1 % to 7 %`; empty if some have no value."""
    known = [each.value for each in alerts if each.value is not None]
    if len(known) != len(alerts):
        return ""
    low, high = (number(each, inert(alerts[0].unit)) for each in (min(known), max(known)))
    return low if low == high else f"{low} to {high}"


def after(alerts: Sequence[WatchAlert]) -> str:
    """Such as ` after 4 m to 6 m`."""
    lengths = [each.lasted_s for each in alerts if each.lasted_s is not None]
    if not lengths:
        return ""
    low, high = span(min(lengths)), span(max(lengths))
    return f" after {low}" if low == high else f" after {low} to {high}"


class EventLines:
    """Formats records. `now` is today: times on other days have their date."""

    def __init__(self, style: Style, now: datetime) -> None:
        self._style = style
        self._now = now
        self._explained: set[tuple[str, str]] = set()

    def lines(self, record: WatchRecord) -> list[str]:
        """Return the lines of a record; none for a sign of life."""
        match record:
            case WatchMeasured():
                lines = self.measured(record)
            case WatchAlert():
                lines = self._alert(record)
            case WatchNode():
                lines = self._of_node(record, inert(record.node))
            case WatchMode():
                lines = self._mode(record)
            case WatchProgress():
                lines = self._progress(record)
            case WatchState():
                lines = self._state(record)
            case WatchEnd():
                lines = self._end(record)
            case WatchNote():
                lines = _note(record)
        return lines

    def batch(self, records: Iterable[WatchRecord]) -> list[str]:
        """Return the lines of one moment; the same event on many nodes is one line."""
        lines: list[str] = []
        for group in folded(records):
            alerts = [each for each in group if isinstance(each, WatchAlert)]
            nodes = [each for each in group if isinstance(each, WatchNode)]
            if len(group) == 1:
                lines += self.lines(group[0])
            else:
                lines += self._alerts(alerts) if alerts else self._nodes(nodes)
        return lines

    def measured(self, record: WatchMeasured) -> list[str]:
        """Return one line for the whole job; with `-o wide` also one per node."""
        lines = [self._figures_line(record, record.summary, self._who(record))]
        if self._style.wide and record.node_count > 1:
            lines += [
                self._figures_line(record, each.figures, inert(each.node)) for each in record.nodes
            ]
        return lines

    def explained(self, record: WatchMeasured) -> list[str]:
        """Return why figures are missing; each reason once."""
        lines = []
        for each in record.summary:
            reason = inert(each.reason)
            if each.value is None and (each.metric.value, reason) not in self._explained:
                self._explained.add((each.metric.value, reason))
                error = f" ({inert(each.last_error)})" if each.last_error else ""
                text = f"{each.metric.value} {MISSING} {reason}{error}"
                lines += self._line(record.time, "", "", text)
        return lines

    def _figures_line(
        self, record: WatchMeasured, figures: tuple[WatchFigure, ...], who: str
    ) -> str:
        text = "  ".join(
            f"{_NAMES[each.metric]} {shown(each)}{' (node)' if each.scope == 'node' else ''}"
            for each in figures
        )
        return f"{self._time(record.time)}  {who}  {text}"

    @staticmethod
    def _who(record: WatchMeasured) -> str:
        if record.node_count == 1 and len(record.nodes) == 1:
            return inert(record.nodes[0].node)
        return f"{record.measured}/{record.node_count} nodes"

    def _alert(self, alert: WatchAlert) -> list[str]:
        where = f"{inert(alert.node)} {inert(alert.rule)}"
        return self._alert_lines(alert, f"{where}{after([alert])}: {inert(alert.words)}")

    def _alerts(self, alerts: Sequence[WatchAlert]) -> list[str]:
        """Show the text of the alert that has lasted longest."""
        first = min(alerts, key=lambda each: each.since)
        range_ = f" ({shown_values})" if (shown_values := values(alerts)) else ""
        example = f"as on {inert(first.node)}: {inert(first.words)}"
        return self._alert_lines(first, f"{where(alerts)}{after(alerts)}{range_}, {example}")

    def _alert_lines(self, alert: WatchAlert, text: str) -> list[str]:
        if alert.phase is Phase.CLEARED:
            return self._line(alert.time, self._style.glyph("✓", "+"), "resolved", text)
        since = f" Since {self._time(alert.since)}."
        if alert.phase is Phase.UNKNOWN:
            return self._line(alert.time, "?", "unknown", f"{text}{since}")
        sign, word = self._style.glyph("✗", "x"), "CRITICAL"
        if alert.severity is Severity.WARNING:
            sign, word = "!", "WARNING"
        remedy = f" {self._style.glyph('→', '->')} {inert(alert.remedy)}" if alert.remedy else ""
        return self._line(alert.time, sign, word, f"{text}{since}{remedy}")

    def _nodes(self, records: Sequence[WatchNode]) -> list[str]:
        count, names = nodes_of(records)
        first = min(records, key=lambda each: each.since or each.time)
        return self._of_node(first, f"{count} nodes, {names}", many=True)

    def _of_node(self, record: WatchNode, node: str, *, many: bool = False) -> list[str]:
        if record.word is NodeWord.STALE:
            since = f" since {self._time(record.since)}" if record.since else ""
            why = f" ({inert(record.reason).removesuffix('.')})" if record.reason else ""
            verb = "do not answer" if many else "does not answer"
            return self._line(record.time, "?", "stale", f"{node} {verb}{since}{why}")
        if record.word is NodeWord.BACK:
            away = f" after {span(record.seconds)}" if record.seconds is not None else ""
            return self._line(record.time, self._style.glyph("✓", "+"), "back", f"{node}{away}")
        return self._line(record.time, "", "", f"{node}: the job's processes are gone from it")

    def _mode(self, record: WatchMode) -> list[str]:
        until = f" until {self._time(record.until)}" if record.until else ""
        by = f", set by {inert(record.set_by)}" if record.set_by else ""
        text = f"measured every {record.interval_s:g} s ({record.mode.value}{until}{by})"
        return self._line(record.time, "", "", text)

    def _progress(self, record: WatchProgress) -> list[str]:
        signs = {
            "output": record.output,
            "processor": record.processor,
            "storage": record.storage,
            "network": record.network,
        }
        times = ", ".join(f"{name} {self._time(each)}" for name, each in signs.items() if each)
        if record.moving:
            return self._line(record.time, "", "", f"the job gets on: {times}")
        last = f"the last sign was {times}" if times else "no sign was seen at all"
        return self._line(record.time, "?", "quiet", f"the job does not get on: {last}")

    def _state(self, record: WatchState) -> list[str]:
        attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
        where = f" on {inert(record.nodes)}" if record.nodes else ""
        why = f": {inert(record.words)}" if record.words else ""
        text = f"{inert(record.allocation)} {record.state.value}{where}{attempt}{why}"
        return self._line(record.time, self._style.glyph("▸", ">"), "", text)

    def _end(self, record: WatchEnd) -> list[str]:
        code = f", exit {record.exit_code}" if record.exit_code else ""
        at = f" at {self._time(record.ended)}" if record.ended else ""
        text = f"{inert(record.allocation)} ended{at}: {record.state.value}{code}"
        return self._line(record.time, self._style.glyph("■", "#"), "", text)

    def _line(self, time: datetime, sign: str, word: str, text: str) -> list[str]:
        """Return one line in a pipe; on a terminal as many as it takes, indented."""
        head = f"{self._time(time)}  "
        mark = f"{sign} {word}".strip()
        painted = self._style.paint(mark, _COLOURS.get(word, ""))
        gap = "  " if mark else ""
        width = self._style.width
        if width is None:
            return [f"{head}{painted}{gap}{text}"]
        indent = cells(head) + cells(mark) + len(gap)
        if width - indent < 20:
            indent = cells(head)
        parts = wrapped(f"{'' if indent > cells(head) else mark + gap}{text}", width - indent) or [
            ""
        ]
        first = f"{head}{painted}{gap}{parts[0]}" if indent > cells(head) else head + parts[0]
        return [first, *(" " * indent + each for each in parts[1:])]

    def _time(self, value: datetime | None) -> str:
        return moment(value, self._style, self._now)


def _note(note: WatchNote) -> list[str]:
    text = inert(note.words).removesuffix(".")
    if note.kind is WatchNoteKind.ALIVE:
        return []
    if note.kind is WatchNoteKind.DISCONNECTED:
        return [f"--- disconnected{f' ({text})' if text else ''}; trying again ---"]
    if note.kind is WatchNoteKind.RECONNECTED:
        after = f" after {span(note.seconds)}" if note.seconds is not None else ""
        return [f"--- reconnected{after}; what changed meanwhile follows ---"]
    return [f"--- {text or note.kind.value} ---"]


def shown(figure: WatchFigure) -> str:
    """Format a figure: `97 %`, `31.2 GiB`, `1.2 MiB/s`; `—` if it was not measured."""
    if figure.value is None:
        return MISSING
    return number(figure.value, figure.unit)


def number(value: float, unit: str) -> str:
    if unit in {"bytes", "bytes/s"}:
        return _bytes(value) + ("/s" if unit == "bytes/s" else "")
    if unit == "µs":
        return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} µs"
    text = f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"
    return f"{text} {unit}".rstrip()


def _bytes(value: float) -> str:
    """Format with the same digits as `top`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5 or unit == "TiB":
            is_whole = unit == "B" or value >= 100
            return f"{value:.0f} {unit}" if is_whole else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def span(seconds: float) -> str:
    """Format a duration: `12 s`, `4 m`, `2 h 5 m`."""
    minutes = int(seconds // 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} m"
    return f"{minutes} m" if minutes else f"{seconds:.0f} s"
