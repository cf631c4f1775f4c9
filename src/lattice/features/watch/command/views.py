"""Outputs for records: a pipe, a terminal with figures in its last line, JSON lines."""

from __future__ import annotations

from typing import Protocol

from lattice.base.shell import Shell
from lattice.base.text import cut
from lattice.features.watch.model import (
    WatchAlert,
    WatchMeasured,
    WatchNode,
    WatchNote,
    WatchNoteKind,
    WatchRecord,
)
from lattice.features.watch.render import EventLines


class WatchView(Protocol):
    """One way to show records."""

    def show(self, record: WatchRecord) -> None: ...
    def end(self) -> None: ...


class _Moment:
    """Holds the records of one moment until it is complete."""

    def __init__(self) -> None:
        self._held: list[WatchRecord] = []

    def take(self, record: WatchRecord) -> list[WatchRecord]:
        self._held.append(record)
        more = isinstance(record, WatchAlert | WatchNode) and record.follows
        return [] if more else self.rest()

    def rest(self) -> list[WatchRecord]:
        held, self._held = self._held, []
        return held


class WatchJsonView:
    """One object per line."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def show(self, record: WatchRecord) -> None:
        if not (isinstance(record, WatchNote) and record.kind is WatchNoteKind.ALIVE):
            self._shell.record(record)

    def end(self) -> None:
        """Do nothing: no record is held."""


class WatchPlainView:
    """One line per event."""

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
        """Show the held records of an incomplete moment."""
        for line in self._lines.batch(self._moment.rest()):
            self._shell.write(f"{line}\n")


class WatchTerminalView:
    """Events scroll; the figures stay in the last line, which is repainted."""

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
        """Keep the last figures and end the line."""
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
    """Another view without figures, which are needed only for `--until`."""

    def __init__(self, view: WatchView) -> None:
        self._view = view

    def show(self, record: WatchRecord) -> None:
        if not isinstance(record, WatchMeasured) and record.type not in {"mode", "progress"}:
            self._view.show(record)

    def end(self) -> None:
        self._view.end()


def view_of(shell: Shell, *, alerts_only: bool) -> WatchView:
    view: WatchView = WatchPlainView(shell)
    if shell.output not in {"table", "wide"}:
        view = WatchJsonView(shell)
    elif shell.live:
        view = WatchTerminalView(shell)
    return AlertsView(view) if alerts_only else view
