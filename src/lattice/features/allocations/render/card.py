"""One allocation on one screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import age, duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, fields, table
from lattice.base.text import cells, cut, inert
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.logs import LastOutput
from lattice.features.allocations.model import AllocationCard
from lattice.features.allocations.render.states import (
    MOVING,
    elapsed_s,
    reason_text,
    state_cell,
    summary,
    tasks_in,
)


def card(answer: AllocationCard, style: Style, now: datetime) -> str:
    """Return one allocation as a card that fits one screen."""
    each = answer.allocation
    facts = _facts(each, style, now)
    if answer.last_output is not None:
        facts.append(("Last output", _last_words(answer.last_output, style, now)))
    if answer.siblings:
        kind = "Array" if each.array else "Components"
        members = [each, *answer.siblings]
        facts.append((kind, f"{sum(map(tasks_in, members))} in all: {summary(members)}"))
    if answer.earlier:
        facts.append(("Earlier", f"the id was used before: {', '.join(answer.earlier)}"))
    if answer.shares or answer.readers:
        from lattice.features.allocations.render.readers import reader_facts  # noqa: PLC0415

        facts += reader_facts(answer, style, now)
    parts = [_head(each, style), fields(facts, style)]
    if len(each.attempts) > 1:
        parts.append(f"  {style.paint('Attempts', 'dim')}\n")
        parts.append(_indented(_attempts(each.attempts, style, now)))
    return "".join(parts)


def _head(each: Allocation, style: Style) -> str:
    state, look = state_cell(each.state, style)
    name, title = inert(each.id), inert(each.name)
    if style.width is not None:
        name = cut(name, 24)
        title = cut(title, max(style.width - cells(name) - cells(state) - 4, 8))
    return f"{style.paint(name, 'bold')}  {title}  {style.paint(state, look)}\n"


def _facts(each: Allocation, style: Style, now: datetime) -> list[tuple[str, Cell]]:
    view = each.vcluster or "—"
    place = f"{view} (partition {each.partition}" + (f", QOS {each.qos})" if each.qos else ")")
    attempt = f"{each.attempt} of {len(each.attempts)}" if len(each.attempts) > 1 else ""
    expected = moment(each.expected_start, style, now) if each.expected_start else ""
    exit_code = "" if each.exit_code is None else _exit_words(each)
    return [
        ("Owner", f"{each.user} (account {each.account}, tenant {each.tenant or '—'})"),
        ("vCluster", place),
        ("Reason", (reason_text(each.reason), "yellow")),
        ("Expected", f"{expected} by Slurm's estimate" if expected else ""),
        ("Depends on", each.dependency),
        ("Nodes", _node_words(each)),
        ("Resources", _resources(each)),
        ("Submitted", moment(each.submitted, style, now)),
        ("Started", moment(each.started, style, now) if each.started else ""),
        ("Ended", moment(each.ended, style, now) if each.ended else ""),
        ("Preempted", moment(each.preempted_at, style, now) if each.preempted_at else ""),
        ("Time", _time_words(each, elapsed_s(each, now))),
        ("Exit code", exit_code),
        ("Attempt", attempt),
        ("Command", each.command),
        ("Directory", each.work_dir),
        ("Output", each.output),
        ("Comment", each.comment),
    ]


def _last_words(last: LastOutput, style: Style, now: datetime) -> str:
    silent = last.nodes - last.answered
    if not last.answered:
        return f"not known: {inert(last.trouble)}"
    if last.time is None:
        said = "none yet"
    else:
        ago = age(max(0.0, (now - last.time).total_seconds()))
        said = f"{moment(last.time, style, now)} ({ago} ago)"
    if silent:
        said += f"; {silent} of {last.nodes} nodes did not say: {inert(last.trouble)}"
    return said


def _node_words(each: Allocation) -> str:
    if each.nodes and each.node_count > 1:
        return f"{each.node_count}: {each.nodes}"
    if not each.nodes and each.node_count:
        return f"{each.node_count} asked for"
    return each.nodes


def _resources(each: Allocation) -> str:
    parts = []
    if each.tasks is not None:
        parts.append(f"{each.tasks} task{'' if each.tasks == 1 else 's'}")
    if each.cpus is not None:
        parts.append(f"{each.cpus} CPU{'' if each.cpus == 1 else 's'}")
    if each.gpus is not None:
        parts.append(f"{each.gpus} GPU{'' if each.gpus == 1 else 's'}")
    if each.memory_bytes is not None:
        parts.append(f"{each.memory_bytes / 2**30:.1f} GiB")
    return ", ".join(parts)


def _time_words(each: Allocation, spent_s: float | None) -> str:
    limit_s = each.time_limit_s
    if spent_s is None:
        return f"limit {duration(limit_s)}" if limit_s is not None else ""
    if limit_s is None:
        return f"{duration(spent_s)}, no limit"
    left_s = limit_s - spent_s
    rest = f", {duration(left_s)} left" if each.state in MOVING and left_s > 0 else ""
    return f"{duration(spent_s)} of {duration(limit_s)}{rest}"


def _exit_words(each: Allocation) -> str:
    code = each.exit_code
    assert code is not None
    return f"{code} (ended by signal {code.signal})" if code.signal else str(code)


def _attempts(attempts: Sequence[Attempt], style: Style, now: datetime) -> str:
    columns = [Column("NO", right=True), Column("STATE"), Column("STARTED"), Column("ENDED")]
    columns += [Column("NODES", least=5), Column("EXIT")]
    rows: list[list[Cell]] = [
        [
            str(each.number),
            state_cell(each.state, style),
            moment(each.started, style, now),
            moment(each.ended, style, now),
            each.nodes,
            "" if each.exit_code is None else str(each.exit_code),
        ]
        for each in attempts
    ]
    return table(columns, rows, style)


def _indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


def next_commands(each: Allocation) -> str:
    """Return a line of commands that can follow, by the allocation's state."""
    name = inert(each.id)
    if each.state.finished:
        return f"Next: lattice logs {inert(each.ref)} · lattice status {inert(each.ref)} -o json"
    if each.started is None:
        return f"Next: lattice status {name} --watch · lattice wait {name} --exit-status"
    return f"Next: lattice logs -f {name} · lattice status {name} --watch · lattice wait {name}"
