"""Consecutive equal lines, shown once with their number. Pure."""

from __future__ import annotations

from lattice.features.logs.render.lines import Head

_FROM = 3
"""Two equal lines are shorter as they are."""


class Repeats:
    """Takes lines and returns lines to show. `waiting` is the count of the current run."""

    def __init__(self, times: str = "×") -> None:
        self._times = times
        self._last: tuple[Head, str] | None = None
        self._count = 0

    def take(self, head: Head, line: str) -> list[str]:
        """The lines to show after this one. Equal lines of another writer are different."""
        last = self._last
        self._last = (head, line)
        if last is not None and last[1] == line and last[0].label == head.label and line:
            self._count += 1
            return []
        shown = self._run(last)
        self._count = 1
        return [*shown, head.time + head.label + line]

    @property
    def waiting(self) -> str:
        """`  × 63`; empty if nothing waits."""
        return f"  {self._times} {self._count}" if self._count > 1 else ""

    def end(self) -> list[str]:
        """End the run; returns what is left to show of it."""
        shown = self._run(self._last)
        self._last, self._count = None, 0
        return shown

    def _run(self, last: tuple[Head, str] | None) -> list[str]:
        if last is None or self._count < 2:
            return []
        if self._count >= _FROM:
            return [f"  {self._times} {self._count}"]
        head, line = last
        return [head.time + head.label + line]
