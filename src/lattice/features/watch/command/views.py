"""Where records go: a pipe, a terminal with the figures in its last line, lines of JSON."""

from __future__ import annotations

from typing import Protocol

from lattice.base.shell import Shell
from lattice.base.text import cut
from lattice.features.watch.model import (
    NoteKind,
    WatchAlert,
    WatchMeasured,
    WatchNode,
    WatchNote,
    WatchRecord,
)
from lattice.features.watch.render.lines import EventLines


class View(Protocol):
    """One way to show records."""

    def show(self, record: WatchRecord) -> None: ...
    def end(self) -> None: ...


class _Moment:
    """Holds the records of one moment until it is wholly told."""

    def __init__(self) -> None:
        self._held: list[WatchRecord] = []

    def take(self, record: WatchRecord) -> list[WatchRecord]:
        self._held.append(record)
        more = isinstance(record, WatchAlert | WatchNode) and record.follows
        return [] if more else self.rest()

    def rest(self) -> list[WatchRecord]:
        held, self._held = self._held, []
        return held


class JsonView:
    """An object a line."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def show(self, record: WatchRecord) -> None:
        if not (isinstance(record, WatchNote) and record.kind is NoteKind.ALIVE):
            self._shell.record(record)

    def end(self) -> None:
        """Nothing is held back."""


class PlainView:
    """A line an event."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._lines = EventLines(shell.style, shell.clock.now())
        self._moment = _Moment()

    def show(self, record: WatchRecord) -> None:
        lines = self._lines.batch(self._moment.take(record))
        if isinstance(record, WatchMeasured):
            lines += self._lines.explained(record)
        self._shell.write("".join(f"{line}\n" for line in lines))

    def end(self) -> None:
        """What is held of a moment that was broken off is shown."""
        for line in self._lines.batch(self._moment.rest()):
            self._shell.write(f"{line}\n")


class TerminalView:
    """Events stay; figures are the last line, which is painted anew. It never scrolls away."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._lines = EventLines(shell.style, shell.clock.now())
        self._bottom = ""
        self._moment = _Moment()

    def show(self, record: WatchRecord) -> None:
        if not isinstance(record, WatchMeasured):
            lines = self._lines.batch(self._moment.take(record))
            if lines:
                self._paint(lines, self._bottom)
            return
        first, *rest = self._lines.measured(record)
        self._paint([*self._lines.explained(record), *rest], first)

    def end(self) -> None:
        """The last figures stay; the terminal is left at the beginning of a line."""
        lines = self._lines.batch(self._moment.rest())
        if lines:
            self._paint(lines, self._bottom)
        if self._bottom:
            self._shell.write("\n")
            self._bottom = ""

    def _paint(self, lines: list[str], bottom: str) -> None:
        style = self._shell.style
        erase = "\r\x1b[K" if self._bottom else ""
        self._bottom = bottom
        shown = style.paint(cut(bottom, (style.width or 80) - 1), "dim")
        self._shell.write(erase + "".join(f"{line}\n" for line in lines) + shown)


class AlertsView:
    """Another view without the figures, which are only there for `--until`."""

    def __init__(self, view: View) -> None:
        self._view = view

    def show(self, record: WatchRecord) -> None:
        if not isinstance(record, WatchMeasured) and record.type not in {"mode", "progress"}:
            self._view.show(record)

    def end(self) -> None:
        self._view.end()


def view_of(shell: Shell, *, alerts_only: bool) -> View:
    """What suits where it goes."""
    view: View = PlainView(shell)
    if shell.output not in {"table", "wide"}:
        view = JsonView(shell)
    elif shell.live:
        view = TerminalView(shell)
    return AlertsView(view) if alerts_only else view
