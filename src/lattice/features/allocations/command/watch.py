"""Watching: ask again and again, and show only what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from lattice.base.errors import Unavailable
from lattice.base.shell import Shell
from lattice.domain.allocation import Allocation, State
from lattice.features.allocations.model import AllocationCard, AllocationList
from lattice.features.allocations.render.states import change_line, source_notes

T = TypeVar("T", AllocationList, AllocationCard)

SILENCE_S = 900.0
_WATCH_S = 2.0


def watch(
    shell: Shell,
    ask: Callable[[], T],
    text: Callable[[T], str],
    members: Callable[[T], Sequence[Allocation]],
    *,
    to_the_end: bool = False,
) -> int:
    """On a terminal the same text kept current; in a pipe a line or a record for each change.

    Goes on until it is interrupted, or with `to_the_end` until all have finished.
    """
    shown: list[str] = []
    known: dict[str, tuple[State, str]] = {}
    told: set[str] = set()
    for answer in answers(shell, ask):
        notes = source_notes(answer.sources, shell.style, shell.clock.now())
        if shell.live and shell.output in {"table", "wide"}:
            shown = _repaint(shell, shown, "".join(f"{note}\n" for note in notes) + text(answer))
        else:
            told = _tell_sources(shell, notes, told)
            for each in members(answer):
                _tell_change(shell, each, known)
        if to_the_end and all(each.state.finished for each in members(answer)):
            break
    return 0


def _tell_sources(shell: Shell, notes: Sequence[str], told: set[str]) -> set[str]:
    """Once for each part that falls silent; its age goes on growing, which is no news."""
    silent = {note.split()[0]: note for note in notes}
    for name, note in silent.items():
        if name not in told:
            shell.warn(note)
    return set(silent)


def _repaint(shell: Shell, shown: list[str], text: str) -> list[str]:
    """Rewrite only the lines that changed."""
    lines = text.splitlines()
    if len(lines) != len(shown):
        shell.write((f"\x1b[{len(shown)}A\x1b[J" if shown else "") + text)
        return lines
    for number, (old, new) in enumerate(zip(shown, lines, strict=True)):
        if old != new:
            up = len(lines) - number
            shell.write(f"\x1b[{up}A\r{new}\x1b[K\x1b[{up}B\r")
    return lines


def answers(shell: Shell, ask: Callable[[], T]) -> Iterator[T]:
    """An answer every few seconds; a server that is away is waited for, and said to be."""
    silent_since: float | None = None
    while True:
        try:
            answer = ask()
        except Unavailable as error:
            now = shell.clock.monotonic()
            if silent_since is None:
                silent_since = now
                shell.warn(f"{error.message}; trying again.")
            elif now - silent_since > SILENCE_S:
                raise
        else:
            if silent_since is not None:
                shell.warn("The server answers again.")
                silent_since = None
            yield answer
        shell.sleep(_WATCH_S)


def _tell_change(shell: Shell, each: Allocation, known: dict[str, tuple[State, str]]) -> None:
    """In a pipe: a line, or a record, for what is new or changed."""
    mark = (each.state, f"{each.nodes} {each.attempt} {each.reason and each.reason.code}")
    before = known.get(each.ref)
    if before == mark:
        return
    known[each.ref] = mark
    if shell.output in {"json", "yaml"}:
        shell.record(each)
        return
    old = before[0] if before is not None and before[0] is not each.state else None
    shell.write(change_line(each, old, shell.style, shell.clock.now()))
