"""One allocation on one screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import age, duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, fields, table
from lattice.base.text import cells, cut, inert
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.labels import read_comment
from lattice.domain.last_output import LastOutput
from lattice.domain.sharing import ReadRecord, Share
from lattice.domain.slices import (
    AllocationSlice,
    SliceState,
    ports_text,
    slice_text,
    start_text,
)
from lattice.domain.training_run import TrainingRun
from lattice.features.allocations.model import AllocationCard
from lattice.features.allocations.render.states import (
    MOVING,
    elapsed_s,
    reason_text,
    state_cell,
    summary,
    tasks_in,
)

_MOST_READERS = 3
_MOST_RUNS = 3


def card(answer: AllocationCard, style: Style, now: datetime) -> str:
    """Return one allocation as a card that fits one screen."""
    each = answer.allocation
    facts = _facts(each, style, now)
    if answer.last_output is not None:
        facts.append(("Last output", _last_output_text(answer.last_output, style, now)))
    facts += _slice_facts(answer.slices)
    if answer.siblings:
        kind = "Array" if each.array else "Components"
        members = [each, *answer.siblings]
        facts.append((kind, f"{sum(map(tasks_in, members))} in all: {summary(members)}"))
    if answer.earlier:
        facts.append(("Earlier", f"the id was used before: {', '.join(answer.earlier)}"))
    facts += _run_facts(answer.runs)
    facts += _reader_facts(answer, style, now)
    parts = [_head(each, style), fields(facts, style)]
    if len(each.attempts) > 1:
        parts.append(f"  {style.paint('Attempts', 'dim')}\n")
        parts.append(_indented(_attempts(each.attempts, style, now)))
    return "".join(parts)


def _slice_facts(slices: Sequence[AllocationSlice]) -> list[tuple[str, Cell]]:
    """Return for each slice its state, and the network ports of its guest."""
    facts: list[tuple[str, Cell]] = []
    for each in slices:
        text = f"{each.node} {slice_text(each.guest)}"
        healthy = each.guest.state is SliceState.HEALTHY
        facts.append(("Slice" if not facts else "", text if healthy else (text, "yellow")))
        if each.guest.ports:
            facts.append(("", f"network: {ports_text(each.guest)}"))
        facts.append(("", start_text(each.guest)))
    return facts


def _head(each: Allocation, style: Style) -> str:
    state, colour = state_cell(each.state, style)
    name, title = inert(each.id), inert(each.name)
    if style.width is not None:
        name = cut(name, 24)
        title = cut(title, max(style.width - cells(name) - cells(state) - 4, 8))
    return f"{style.paint(name, 'bold')}  {title}  {style.paint(state, colour)}\n"


def _facts(each: Allocation, style: Style, now: datetime) -> list[tuple[str, Cell]]:
    view = each.vcluster or "—"
    vcluster = f"{view} (partition {each.partition}" + (f", QOS {each.qos})" if each.qos else ")")
    attempt = f"{each.attempt} of {len(each.attempts)}" if len(each.attempts) > 1 else ""
    expected = moment(each.expected_start, style, now) if each.expected_start else ""
    exit_code = "" if each.exit_code is None else _exit_text(each)
    return [
        ("Owner", f"{each.user} (account {each.account}, tenant {each.tenant or '—'})"),
        ("vCluster", vcluster),
        ("Reason", (reason_text(each.reason), "yellow")),
        ("Expected", f"{expected} by Slurm's estimate" if expected else ""),
        ("Depends on", each.dependency),
        ("Nodes", _nodes_text(each)),
        ("Resources", _resources(each)),
        ("Submitted", moment(each.submitted, style, now)),
        ("Started", moment(each.started, style, now) if each.started else ""),
        ("Ended", moment(each.ended, style, now) if each.ended else ""),
        ("Preempted", moment(each.preempted_at, style, now) if each.preempted_at else ""),
        ("Time", _time_text(each, elapsed_s(each, now))),
        ("Exit code", exit_code),
        ("Attempt", attempt),
        ("Command", each.command),
        ("Directory", each.work_dir),
        ("Output", each.output),
        _comment(each.comment),
    ]


def _run_facts(runs: Sequence[TrainingRun]) -> list[tuple[str, Cell]]:
    """Return one line for each of the newest training runs."""
    facts: list[tuple[str, Cell]] = []
    for number, each in enumerate(runs[:_MOST_RUNS]):
        name = cut(inert(each.name) or inert(each.id), 40)
        values = ", ".join(
            f"{inert(one.name)} {one.value:.4g}" for one in each.metrics if _is_loss(one.name)
        )
        text = f"{name} ({inert(each.status)}{', ' + values if values else ''})"
        facts.append(("Run" if not number else "", text))
    if len(runs) > _MOST_RUNS:
        facts.append(("", f"and {len(runs) - _MOST_RUNS} more: lattice runs"))
    return facts


def _is_loss(name: str) -> bool:
    return name.lower() in {"loss", "train_loss", "epoch"}


def _comment(text: str) -> tuple[str, Cell]:
    marks = read_comment(text)
    labels = ", ".join(f"{name}={value}" for name, value in marks.labels.items())
    return ("Labels", labels) if labels or marks.key else ("Comment", text)


def _last_output_text(last: LastOutput, style: Style, now: datetime) -> str:
    silent = last.nodes - last.answered
    if not last.answered:
        return f"not known: {inert(last.trouble)}"
    if last.time is None:
        text = "none yet"
    else:
        ago = age(max(0.0, (now - last.time).total_seconds()))
        text = f"{moment(last.time, style, now)} ({ago} ago)"
    if silent:
        text += f"; {silent} of {last.nodes} nodes did not say: {inert(last.trouble)}"
    return text


def _nodes_text(each: Allocation) -> str:
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


def _time_text(each: Allocation, spent_s: float | None) -> str:
    limit_s = each.time_limit_s
    if spent_s is None:
        return f"limit {duration(limit_s)}" if limit_s is not None else ""
    if limit_s is None:
        return f"{duration(spent_s)}, no limit"
    left_s = limit_s - spent_s
    rest = f", {duration(left_s)} left" if each.state in MOVING and left_s > 0 else ""
    return f"{duration(spent_s)} of {duration(limit_s)}{rest}"


def _exit_text(each: Allocation) -> str:
    code = each.exit_code
    assert code is not None
    return f"{code} (ended by signal {code.signal})" if code.signal else str(code)


def _reader_facts(answer: AllocationCard, style: Style, now: datetime) -> list[tuple[str, Cell]]:
    """Return one line with the shares and up to three lines with the latest readers."""
    facts: list[tuple[str, Cell]] = []
    if answer.shares:
        facts.append(("Shared", _shared(answer.shares, style, now)))
    readers = _by_reader(answer.readers)
    for number, records in enumerate(readers[:_MOST_READERS]):
        facts.append(("Read" if not number else "", _read(records, style, now)))
    if len(readers) > _MOST_READERS:
        more = len(readers) - _MOST_READERS
        facts.append(("", f"and by {more} more: lattice share {inert(answer.allocation.id)}"))
    return facts


def _shared(shares: Sequence[Share], style: Style, now: datetime) -> str:
    texts = [f"{inert(each.user)} until {moment(each.until, style, now)}" for each in shares]
    shown = ", ".join(texts[:_MOST_READERS])
    more = f" and {len(texts) - _MOST_READERS} more" if len(texts) > _MOST_READERS else ""
    return f"with {shown}{more}"


def _by_reader(records: Sequence[ReadRecord]) -> list[list[ReadRecord]]:
    """Group records by reader, in the given order: newest first."""
    found: dict[str, list[ReadRecord]] = {}
    for each in records:
        found.setdefault(each.reader, []).append(each)
    return list(found.values())


def _read(records: Sequence[ReadRecord], style: Style, now: datetime) -> str:
    newest = records[0]
    times = max(sum(each.times for each in records), 1)
    often = "once" if times == 1 else f"{times} times"
    last = moment(newest.last, style, now)
    return f"by {inert(newest.reader)} ({newest.standing.value}) {often}, last {last}"


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
