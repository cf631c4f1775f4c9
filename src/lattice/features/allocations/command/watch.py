"""`--watch`: poll the server and show only what changed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

from lattice.base.errors import RateLimited, Unavailable
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.allocation import Allocation, State
from lattice.features.allocations.model import AllocationCard, AllocationList
from lattice.features.allocations.render.states import change_line, source_notes

T = TypeVar("T", AllocationList, AllocationCard)

SILENCE_S = 900.0
"""How long the server may stay unreachable before the command fails."""
_PAUSE_S = 2.0


def watch(
    shell: Shell,
    ask: Callable[[], T],
    text: Callable[[T], str],
    members: Callable[[T], Sequence[Allocation]],
    *,
    to_the_end: bool = False,
) -> int:
    """Show the same text kept current, or in a pipe one line or record per change.

    It runs until it is interrupted, or with `to_the_end` until all allocations have finished. While
    the server does not answer, it retries and shows a warning.
    """
    gc.enable()
    painted = shell.live and shell.output in {"table", "wide"}
    view = _Screen(shell) if painted else _Lines(shell)
    silent_since: float | None = None
    while True:
        try:
            answer = ask()
        except (RateLimited, Unavailable) as error:
            now = shell.clock.monotonic()
            if silent_since is None:
                silent_since = now
                view.away(inert(error.message))
            elif now - silent_since > SILENCE_S:
                raise
        else:
            if silent_since is not None:
                silent_since = None
                view.back()
            notes = source_notes(answer.sources, shell.style, shell.clock.now())
            view.show(text(answer) if painted else "", members(answer), notes)
            if to_the_end and all(each.state.finished for each in members(answer)):
                return 0
        shell.sleep(_PAUSE_S)


class _Screen:
    """A terminal: rewrites the changed lines in place."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._shown: list[str] = []
        self._text = ""

    def show(self, text: str, allocations: Sequence[Allocation], notes: Sequence[str]) -> None:  # noqa: ARG002 - the text has them
        self._text = text
        self._paint([*notes, *text.splitlines()])

    def away(self, message: str) -> None:
        self._paint([f"{message}; trying again.", *self._text.splitlines()])

    def back(self) -> None:
        """Do nothing: the next `show` replaces the warning."""

    def _paint(self, lines: list[str]) -> None:
        height = self._shell.style.height
        if height is not None and len(lines) >= height:
            # The cursor can't reach lines that have scrolled off the screen.
            left_off = len(lines) - height + 2
            lines = [*lines[: height - 2], f"… {left_off} lines more; the window is too low"]
        if len(lines) != len(self._shown):
            back = f"\x1b[{len(self._shown)}A\x1b[J" if self._shown else ""
            self._shell.write(back + "".join(f"{line}\n" for line in lines))
        else:
            for number, (old, new) in enumerate(zip(self._shown, lines, strict=True)):
                if old != new:
                    up = len(lines) - number
                    self._shell.write(f"\x1b[{up}A\r{new}\x1b[K\x1b[{up}B\r")
        self._shown = lines


class _Lines:
    """A pipe: one line or record for each new or changed allocation."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._known: dict[str, tuple[State, str]] = {}
        self._silent: set[str] = set()

    def show(self, text: str, allocations: Sequence[Allocation], notes: Sequence[str]) -> None:  # noqa: ARG002 - only changes are told
        silent = {note.split()[0]: note for note in notes}
        for name in silent.keys() - self._silent:
            # Warn once per source: its age grows with each poll.
            self._shell.warn(silent[name])
        self._silent = set(silent)
        for each in allocations:
            self._report(each)

    def away(self, message: str) -> None:
        self._shell.warn(f"{message}; trying again.")

    def back(self) -> None:
        self._shell.warn("The server answers again.")

    def _report(self, each: Allocation) -> None:
        shell = self._shell
        mark = (each.state, f"{each.nodes} {each.attempt} {each.reason and each.reason.code}")
        before = self._known.get(each.ref)
        if before == mark:
            return
        self._known[each.ref] = mark
        if shell.output in {"json", "yaml"}:
            shell.record(each)
            return
        old = before[0] if before is not None and before[0] is not each.state else None
        shell.write(change_line(each, old, shell.style, shell.clock.now()))
