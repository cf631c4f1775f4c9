"""An answer as text: a plain table with the source and the reasons, and CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import age, duration, moment
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.table import GAP, UNKNOWN, Cell, Column, table
from lattice.base.text import cells, inert, wrapped
from lattice.domain.nodeset import NodeSet
from lattice.features.top.model import RowKind, TopAnswer, TopCell, TopColumn, TopMode, TopRow

_HEADING = (
    "time", "allocation", "attempt", "row", "node", "gpu_uuid", "metric", "value", "peak", "unit",
    "source", "age_s", "reason",
)  # fmt: skip
_TITLES = {
    "gpu_utilization": "GPU",
    "gpu_memory_used": "GMEM",
    "gpu_power_draw": "POWER",
    "cpu_utilization": "CPU",
    "memory_used": "MEM",
    "network_tx_bytes": "TX",
    "network_rx_bytes": "RX",
    "io_read_bytes": "READ",
    "io_write_bytes": "WRITE",
    "io_latency_p99": "P99",
    "gpu_temperature": "TEMP",
    "gpu_sm_occupancy": "SM",
    "memory_cache": "CACHE",
    "memory_limit": "LIMIT",
    "oom_kills": "OOM",
}
_LONGEST_NAME = 24


def plain(answer: TopAnswer, style: Style, now: datetime) -> str:
    body = _summary(answer, style) if answer.mode is TopMode.SUMMARY else _rows(answer, style)
    return head(answer, style, now) + body + _lines(reasons(answer), style)


def head(answer: TopAnswer, style: Style, now: datetime) -> str:
    """Return the job's state, and the source and age of the values."""
    many = f" attempt {answer.attempt} of {answer.attempts}" if answer.attempts > 1 else ""
    lasted_s = ((answer.ended or answer.taken) - answer.started).total_seconds() if (
        answer.started
    ) else None  # fmt: skip
    ended = f", ended {moment(answer.ended, style, now)}" if answer.ended else ""
    first = (
        f"{inert(answer.id)}  {inert(answer.name)}{many}  {answer.state.value}{_state_age(answer)}"
        f"{ended}  {duration(lasted_s)}  {inert(answer.nodes)}"
    )
    return style.paint(first, "bold") + "\n" + _lines([origin_text(answer)], style)


def origin_text(answer: TopAnswer) -> str:
    """Return source, age, resolution, coverage, and the path of the data."""
    origin = answer.origin
    parts = [f"source: {origin.source.value} by {origin.via}"]
    if origin.age_s is not None and answer.ended is None:
        parts.append(f"age {age(origin.age_s)}")
    if origin.resolution_s is not None:
        parts.append(f"every {origin.resolution_s:g} s")
    parts.append(str(origin.coverage))
    if answer.duration_s is not None:
        parts.append(f"mean over {duration(answer.duration_s)}")
    return inert(" · ".join(parts))


def reasons(answer: TopAnswer) -> list[str]:
    """Return why cells have no number: each reason once, with its nodes."""
    places: dict[tuple[str, str], dict[str, list[str]]] = {}
    rows = answer.rows if answer.mode is TopMode.SUMMARY else answer.rows[1:]
    for row in rows:
        if row.reason:
            places.setdefault((row.reason, ""), {}).setdefault("", []).append(row.node)
        for cell in row.cells:
            if cell.value is None and cell.reason != row.reason:
                where = places.setdefault((cell.reason, cell.last_error), {})
                where.setdefault(cell.metric.value, []).append(row.node)
    lines = []
    for (reason, last_error), where in places.items():
        error = f" ({last_error})" if last_error and last_error not in reason else ""
        lines += [
            f"{UNKNOWN} {subject}{': ' if subject else ''}{reason}{error}"
            for subject in _subjects(where)
        ]
    return [*lines, *_scopes(answer), *answer.notes]


def _subjects(where: dict[str, list[str]]) -> list[str]:
    """Group metrics that are missing on exactly the same nodes."""
    alike: dict[str, list[str]] = {}
    for metric, nodes in where.items():
        alike.setdefault(_folded({node for node in nodes if node}), []).append(metric)
    return [
        " on ".join(each for each in (", ".join(filter(None, metrics)), nodes) if each)
        for nodes, metrics in alike.items()
    ]


def _folded(nodes: set[str]) -> str:
    try:
        return NodeSet(sorted(nodes)).fold()
    except ValueError:
        # Not a valid node name; shown unchanged.
        return ",".join(sorted(nodes))


def _scopes(answer: TopAnswer) -> list[str]:
    shared = [
        each.metric.value for each in answer.rows[0].cells if each.scope == "node" and each.value
    ]
    return [f"* {', '.join(shared)}: the whole node's, not the job's alone"] if shared else []


def _state_age(answer: TopAnswer) -> str:
    old_s = next((each.age_s for each in answer.sources if not each.ok and each.age_s), 0.0)
    return f" (as of {age(old_s)} ago)" if old_s >= 1 else ""


def _summary(answer: TopAnswer, style: Style) -> str:
    over = answer.duration_s is not None
    columns = [Column("METRIC"), Column("MEAN" if over else "VALUE", right=True)]
    columns += [Column("PEAK", right=True)] if over else []
    columns += [Column("OF", least=8)]
    rows: list[list[Cell]] = []
    for column, cell in zip(answer.columns, answer.rows[0].cells, strict=True):
        row: list[Cell] = [column.metric.value, _value(cell, column)]
        row += [_number(cell.peak, column)] if over else []
        row.append(combined(cell, column) or " ")
        rows.append(row)
    return table(columns, rows, style)


def combined(cell: TopCell, column: TopColumn) -> str:
    """Return how many nodes or GPUs a value combines, such as `mean of 4 GPUs`."""
    if cell.value is None or not cell.of:
        return ""
    what = "GPU" if column.per_gpu else "node"
    return f"{column.summing.value} of {cell.of} {what}{'s' if cell.of != 1 else ''}"


def _rows(answer: TopAnswer, style: Style) -> str:
    """One line per row. A metric without values has no column; wide tables are split."""
    gpu = answer.mode is TopMode.PER_GPU
    shown = [
        index
        for index in range(len(answer.columns))
        if any(row.cells[index].value is not None for row in answer.rows)
    ]
    names = [_name(each, gpu=gpu) for each in answer.rows]
    texts = {
        index: [_value(row.cells[index], answer.columns[index]) for row in answer.rows]
        for index in shown
    }
    ages = [age(row.age_s) if row.age_s is not None else "" for row in answer.rows]
    blocks = _blocks(answer, shown, names, texts, style)
    parts = []
    for number_, block in enumerate(blocks):
        last = number_ == len(blocks) - 1 and answer.ended is None
        columns = [Column("GPU" if gpu else "NODE", least=6)]
        columns += [Column(title(answer.columns[each].metric.value), right=True) for each in block]
        columns += [Column("AGE", right=True)] if last else []
        rows: list[list[Cell]] = [
            [names[row], *(texts[each][row] for each in block), *([ages[row]] if last else [])]
            for row in (*range(1, len(answer.rows)), 0)
        ]
        parts.append(table(columns, rows, style))
    return "\n".join(parts)


def _blocks(
    answer: TopAnswer,
    shown: Sequence[int],
    names: Sequence[str],
    texts: dict[int, list[str]],
    style: Style,
) -> list[list[int]]:
    if style.width is None or not shown:
        return [list(shown)]
    first = max(map(cells, names))
    blocks: list[list[int]] = [[]]
    # The last block has the age; every block leaves room for it.
    used = first + 8
    for index in shown:
        heading = title(answer.columns[index].metric.value)
        wide = max([cells(heading), *map(cells, texts[index])]) + len(GAP)
        if used + wide > style.width and blocks[-1]:
            blocks.append([])
            used = first + 8
        blocks[-1].append(index)
        used += wide
    return blocks


def _name(row: TopRow, *, gpu: bool) -> str:
    if row.kind is RowKind.SUMMARY:
        return "all"
    if not gpu or not row.gpu_uuid:
        return row.node
    return f"{row.node} {row.gpu_uuid[:_LONGEST_NAME]}"


def _value(cell: TopCell, column: TopColumn) -> str:
    star = "*" if cell.scope == "node" and cell.value is not None else ""
    return _number(cell.value, column) + star


def _number(value: float | None, column: TopColumn) -> str:
    return UNKNOWN if value is None else number(value, column.unit)


def _lines(lines: Sequence[str], style: Style) -> str:
    text = ""
    for line in lines:
        pieces = [inert(line)]
        if style.width is not None and cells(pieces[0]) > style.width:
            pieces = wrapped(inert(line), style.width - 2)
            pieces = [pieces[0], *(f"  {each}" for each in pieces[1:])]
        text += "".join(style.paint(each, "dim") + "\n" for each in pieces)
    return text


def title(metric: str) -> str:
    """Return the heading of a narrow column."""
    return _TITLES.get(metric, metric.upper())


def commas(answer: TopAnswer, *, heading: bool = True) -> str:
    """Return CSV: one line per cell; an empty value was not measured, for the reason given."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if heading:
        writer.writerow(_HEADING)
    for row in answer.rows:
        for column, cell in zip(answer.columns, row.cells, strict=True):
            writer.writerow(
                inert(str(each)) if each is not None else ""
                for each in (
                    answer.taken.isoformat(),
                    answer.allocation,
                    answer.attempt,
                    row.kind.value,
                    row.node,
                    row.gpu_uuid,
                    cell.metric.value,
                    cell.value,
                    cell.peak,
                    column.unit,
                    cell.source.value,
                    row.age_s,
                    cell.reason,
                )
            )
    return text.getvalue()
