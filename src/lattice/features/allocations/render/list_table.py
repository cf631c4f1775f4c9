"""The lists of current and of past allocations as tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.domain.allocation import Allocation, Attempt
from lattice.features.allocations.render.states import (
    MOVING,
    elapsed_s,
    node_text,
    reason_text,
    state_cell,
    tasks_in,
)

_GROUP_FROM = 2
_GROUP_RUNNING_FROM = 9
_WIDE = [
    *(Column(name) for name in ("ACCOUNT", "PARTITION", "QOS", "SUBMITTED", "STARTED", "ENDED")),
    *(Column(name, right=True) for name in ("CPUS", "GPUS")),
    Column("EXIT"),
]
_HISTORY_WIDE = (
    "ACCOUNT",
    "PARTITION",
    "VCLUSTER",
    "SUBMITTED",
    "LIMIT",
    "CPUS",
    "GPUS",
    "FULL NAME",
)


class TableRow(NamedTuple):
    """One line of a list: an allocation, or several array tasks in the same state."""

    first: Allocation
    id: str
    tasks: int = 1


def rows_of(allocations: Iterable[Allocation], *, expand: bool) -> list[TableRow]:
    """Merge array tasks with the same state and reason into one row, at the place of the first.

    Two tasks are enough to merge, or nine while they run. `expand` keeps one row per task.
    """
    groups: dict[object, list[Allocation]] = {}
    for each in allocations:
        array = each.array
        alone = expand or array is None or array.task_id is None
        same = (
            (each.cluster, array.job_id, each.state, each.reason) if array and not alone else None
        )
        groups.setdefault(same or (each.ref, each.attempt), []).append(each)
    rows: list[TableRow] = []
    for members in groups.values():
        least = _GROUP_RUNNING_FROM if members[0].state in MOVING else _GROUP_FROM
        if len(members) < least:
            rows.extend(TableRow(each, _shown_id(each), tasks_in(each)) for each in members)
            continue
        tasks = sorted(each.array.task_id or 0 for each in members if each.array)
        job_id = members[0].array.job_id if members[0].array else members[0].job_id
        rows.append(TableRow(members[0], f"{job_id}_[{ranges(tasks)}]", len(members)))
    return rows


def _shown_id(each: Allocation) -> str:
    # Slurm keeps pending tasks as one record, under the id of the whole array.
    waiting = each.array.waiting.partition("%")[0] if each.array else ""
    return f"{each.id}_[{waiting}]" if waiting else each.id


def ranges(numbers: Sequence[int]) -> str:
    """Fold sorted numbers into ranges: `1-3,7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)


def allocation_table(
    allocations: Sequence[Allocation], style: Style, now: datetime, *, with_user: bool = False
) -> str:
    """Return the list as a table.

    On a terminal, attempt and reason are part of their row; otherwise they have columns.
    """
    rows = rows_of(allocations, expand=style.wide)
    narrow = style.width is not None
    with_user = with_user or style.wide
    retried = style.wide or (not narrow and any(each.attempt > 1 for each in allocations))
    waiting = not narrow and any(each.reason for each in allocations)
    columns = [Column("ID"), Column("NAME", least=8)]
    columns += [Column("USER", least=5)] if with_user else []
    columns += [Column("STATE"), Column("NODES", least=6)]
    columns += [Column("TIME", right=True), Column("LIMIT", right=True)]
    columns += [Column("VCLUSTER", least=5)]
    columns += [Column("ATTEMPT", right=True)] if retried else []
    columns += _WIDE if style.wide else []
    columns += [Column("REASON")] if waiting else []
    cells = []
    for row in rows:
        each = row.first
        spent = None if row.tasks > 1 else elapsed_s(each, now)
        line: list[Cell] = [_name(row, numbered=narrow), each.name]
        line += [each.user] if with_user else []
        line += [state_cell(each.state, style, row.tasks), node_text(each)]
        line += [duration(spent), duration(each.time_limit_s), each.vcluster or ""]
        line += [str(each.attempt)] if retried else []
        line += _wide(each, style, now) if style.wide else []
        line += [reason_text(each.reason)] if waiting else []
        cells.append(line)
    notes = [reason_text(row.first.reason) for row in rows] if narrow else []
    return table(columns, cells, style, notes)


def _name(row: TableRow, *, numbered: bool) -> str:
    return f"{row.id} #{row.first.attempt}" if numbered and row.first.attempt > 1 else row.id


def _wide(each: Allocation, style: Style, now: datetime) -> list[Cell]:
    times = (each.submitted, each.started, each.ended)
    numbers = (each.cpus, each.gpus, each.exit_code)
    return [
        each.account,
        each.partition,
        each.qos,
        *(moment(value, style, now) for value in times),
        *("" if value is None else str(value) for value in numbers),
    ]


def history_table(
    allocations: Sequence[Allocation], style: Style, now: datetime, *, with_user: bool = False
) -> str:
    """Return a table with one line per attempt: start, end and final state."""
    columns = [Column("ID"), Column("NAME", least=8)]
    columns += [Column("USER", least=5)] if with_user or style.wide else []
    columns += [Column("STATE"), Column("STARTED"), Column("ENDED"), Column("TIME", right=True)]
    columns += [Column("NODES", least=5), Column("EXIT")]
    columns += [Column(name) for name in _HISTORY_WIDE] if style.wide else []
    lines: list[list[Cell]] = []
    for each in allocations:
        several = len(each.attempts) > 1
        lines += [
            _history_line(each, attempt, several, with_user, style, now)
            for attempt in each.attempts or (None,)
        ]
    return table(columns, lines, style)


def _history_line(
    each: Allocation,
    attempt: Attempt | None,
    several: bool,
    with_user: bool,
    style: Style,
    now: datetime,
) -> list[Cell]:
    source = attempt or each
    name = f"{each.id} #{attempt.number}" if attempt is not None and several else each.id
    line: list[Cell] = [name, each.name]
    line += [each.user] if with_user or style.wide else []
    line += [
        state_cell(source.state, style),
        moment(source.started, style, now),
        moment(source.ended, style, now),
        duration(_span_s(each, attempt, several, now)),
        source.nodes or ("" if several else node_text(each)),
        "" if source.exit_code is None else str(source.exit_code),
    ]
    if style.wide:
        line += [each.account, each.partition, each.vcluster or ""]
        line += [moment(each.submitted, style, now), duration(each.time_limit_s)]
        line += ["" if value is None else str(value) for value in (each.cpus, each.gpus)]
        line += [each.ref]
    return line


def _span_s(
    each: Allocation, attempt: Attempt | None, several: bool, now: datetime
) -> float | None:
    if attempt is None or not several or attempt.number == each.attempt:
        return elapsed_s(each, now)
    if attempt.started is None or attempt.ended is None:
        return None
    return (attempt.ended - attempt.started).total_seconds()
