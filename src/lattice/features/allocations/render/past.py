"""History as a table, similar to sacct's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.domain.allocation import Allocation, Attempt
from lattice.features.allocations.render.states import elapsed_s, node_text, state_cell

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
