"""States, reasons and times of an allocation as text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from lattice.base.moment import moment, silence
from lattice.base.style import Style
from lattice.base.text import inert
from lattice.domain.allocation import Allocation, Reason, State
from lattice.domain.source import AGREED, LIVE, PAST, Source

MOVING = frozenset(
    {State.RUNNING, State.CONFIGURING, State.COMPLETING, State.STAGE_OUT, State.RESIZING}
)
_GONE = frozenset({State.CANCELLED, State.REVOKED})


def state_cell(state: State, style: Style, count: int = 1) -> tuple[str, str]:
    """Return glyph, word and count with a style. Colour is never the only sign."""
    sign, colour = _sign(state, style)
    times = f" ×{count}" if count > 1 else ""
    return f"{sign} {state.value.replace('_', ' ')}{times}", colour


def _sign(state: State, style: Style) -> tuple[str, str]:
    if state in MOVING:
        return style.glyph("●", "*"), "green"
    if state is State.COMPLETED:
        return style.glyph("✓", "+"), "dim"
    if state in _GONE:
        return style.glyph("⊘", "-"), "dim"
    if state.finished:
        return style.glyph("✗", "x"), "red"
    if state is State.UNKNOWN:
        return "?", "yellow"
    return style.glyph("○", "."), "yellow"


def reason_text(reason: Reason | None) -> str:
    """Return the reason in words, followed by Slurm's code."""
    if reason is None:
        return ""
    if not reason.words:
        return f"({reason.code})"
    return f"{reason.words} ({reason.code})" if reason.code else reason.words


def elapsed_s(each: Allocation, at: datetime) -> int | None:
    """Return the running time in seconds at `at`; a waiting or unknown state does not count on."""
    if each.state.waiting or each.state is State.UNKNOWN:
        return each.elapsed_s
    return each.elapsed_at(at)


def node_text(each: Allocation) -> str:
    """Return the nodes it has, or else how many it requests."""
    if each.nodes:
        return each.nodes
    return str(each.node_count) if each.node_count else ""


def tasks_in(allocation: Allocation) -> int:
    """Return how many tasks one Slurm record stands for (`1-100:2%5`)."""
    text = allocation.array.waiting if allocation.array else ""
    total = 0
    for part in text.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        if not (low.isdigit() and (high or low).isdigit() and (step or "1").isdigit()):
            return 1
        total += (int(high or low) - int(low)) // max(int(step or 1), 1) + 1
    return max(total, 1)


def summary(allocations: Iterable[Allocation]) -> str:
    """Return counts such as `3 running · 2 pending`.

    Unfinished states come first, running before the others, then by count.
    """
    counts: Counter[State] = Counter()
    for each in allocations:
        counts[each.state] += tasks_in(each)
    order = sorted(
        counts, key=lambda state: (state.finished, state is not State.RUNNING, -counts[state])
    )
    return " · ".join(f"{counts[state]} {state.value.replace('_', ' ')}" for state in order)


def known_at(sources: Iterable[Source], now: datetime) -> datetime:
    """Return the time of the data: now, or when slurmctld last answered."""
    for source in sources:
        if source.name == LIVE and not source.ok and source.as_of is not None:
            return min(source.as_of, now)
    return now


def source_notes(sources: Iterable[Source], style: Style, now: datetime) -> list[str]:
    """Return a line for each source that does not answer, or not completely."""
    notes = []
    for source in sources:
        if source.incomplete is not None:
            notes.append(f"Allocations are missing: {inert(source.incomplete)}")
        if source.ok:
            continue
        if source.name == PAST:
            notes.append("Finished allocations are missing: slurmdbd does not answer.")
        elif source.name == AGREED:
            notes.append("Who else has read it is missing: the agreed state does not answer.")
        elif source.as_of is None:
            notes.append(f"{source.name} has not answered yet: what only it knows is missing.")
        else:
            subject = "slurmctld" if source.name == LIVE else inert(source.name)
            shown = moment(source.as_of, style, now)
            notes.append(f"{subject} {silence(source.age_s)}; this is the state as of {shown}.")
    return notes


def change_line(each: Allocation, before: State | None, style: Style, now: datetime) -> str:
    """Return one line for a state that is new or has changed."""
    word, colour = state_cell(each.state, style)
    came = f"{before.value.replace('_', ' ')} → " if before is not None else ""
    where = f" on {inert(each.nodes)}" if each.nodes else ""
    why = f": {inert(reason_text(each.reason))}" if each.reason else ""
    name = f"{inert(each.id)} {inert(each.name)}"
    shown = style.paint(word, colour)
    return f"{moment(now, style, now)}  {name}  {came}{shown}{where}{why}\n"
