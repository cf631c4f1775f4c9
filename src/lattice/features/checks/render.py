"""Results of checks as text. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import moment
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.node_check import TITLES, CheckMeasure, NodeCheck
from lattice.features.checks.model import NodeChecks, OpenCheck

_COLUMNS = (
    ("all_reduce", "ALL-REDUCE"),
    ("gpu_all_reduce", "OF GPUS"),
    ("link", "LINK"),
    ("trip", "ROUND TRIP"),
    ("disk_read", "READ"),
    ("disk_write", "WRITE"),
)


def history(answer: NodeChecks, style: Style, now: datetime) -> str:
    """A line for each result, with its warnings and what was not measured below it."""
    columns = [Column("NODE"), Column("CHECK", right=True), Column("WHEN")]
    columns += [Column(title, right=True) for _, title in _COLUMNS]
    columns += [Column("NODES", least=8)]
    rows: list[list[Cell]] = []
    notes = []
    for each in answer.nodes:
        for one in each.checks:
            row: list[Cell] = [each.node, str(one.job_id), moment(one.at, style, now)]
            row += [_figure(one, name) for name, _ in _COLUMNS]
            rows.append([*row, one.nodes])
            notes.append(_note(one))
    text = table(columns, rows, style, notes) if rows else ""
    return text + "".join(f"{open_text(each)}\n" for each in answer.open)


def _figure(check: NodeCheck, name: str) -> Cell:
    value = check.value(name)
    if value is None:
        return ""
    if name == "trip":
        return number(value * 1e6, "µs")
    text = number(value, "bytes/s")
    return (text, "yellow") if any(TITLES[name] in each for each in check.warnings) else text


def _note(check: NodeCheck) -> str:
    if check.reason:
        return check.reason
    parts = [f"warning: {each}" for each in check.warnings]
    if tools := _tools(check):
        parts.append(tools)
    absent: dict[str, list[str]] = {}
    for each in check.measures:
        if each.value is None:
            absent.setdefault(each.reason, []).append(TITLES[each.name])
    parts += [f"{', '.join(names)}: {reason}" for reason, names in absent.items()]
    return "; ".join(parts)


def _tools(check: NodeCheck) -> str:
    by = {each.tool: each for each in check.measures if each.name.endswith("all_reduce")}
    found = [f"{TITLES[each.name]} by {each.tool}" for each in by.values() if _measured(each)]
    link = next((each for each in check.measures if each.name == "link" and _measured(each)), None)
    found += [f"link to {link.peer}"] if link is not None and link.peer else []
    return ", ".join(found)


def _measured(measure: CheckMeasure) -> bool:
    return measure.value is not None


def open_text(check: OpenCheck) -> str:
    """A check that has no result yet, in one sentence."""
    state = check.state or "of unknown state"
    why = f": {inert(check.reason)}" if check.reason else ""
    return f"Check {check.job_id} of {inert(check.nodes)} is {state}{why}."
