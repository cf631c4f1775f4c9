"""Where the records of a stream go: a pipe, a terminal, a pager, lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.nodeset import NodeSet
from lattice.features.logs.model import LogBlock, LogGap, LogNote, LogRecord, NoteKind
from lattice.features.logs.render.lines import LineText
from lattice.features.logs.render.live import LiveView
from lattice.features.logs.render.marks import gap_mark, note_mark
from lattice.features.logs.render.records import json_lines
from lattice.features.logs.render.repeats import Repeats

_SILENT = frozenset({NoteKind.STALLED, NoteKind.DISCONNECTED, NoteKind.NODE_LOST})
_MUST_SEE = frozenset({NoteKind.NODE_LOST, NoteKind.ARCHIVE_AWAY})


class View(Protocol):
    """One way to show records."""

    def show(self, record: LogRecord) -> None: ...
    def end(self) -> None: ...


class _Unfinished:
    """Beginnings of lines, until the whole line comes, or the stream ends without it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], LogBlock] = {}

    def whole(self, block: LogBlock) -> bool:
        """True if the block has whole lines; else it is kept."""
        key = (block.node, block.stream.value, block.source)
        if block.unfinished:
            self._open[key] = block
            return False
        self._open.pop(key, None)
        return True

    def left(self) -> list[LogBlock]:
        """Those whose end never came."""
        left = list(self._open.values())
        self._open.clear()
        return left


class PlainView:
    """Lines to standard output, everything about them to standard error."""

    def __init__(self, shell: Shell, lines: LineText, job: str) -> None:
        self._shell = shell
        self._lines = lines
        self._job = job
        self._unfinished = _Unfinished()

    def show(self, record: LogRecord) -> None:
        if isinstance(record, LogBlock):
            if self._unfinished.whole(record):
                self._shell.write(self._lines.text(record))
            return
        if isinstance(record, LogNote) and record.kind is NoteKind.END:
            self.end()
        tell(self._shell, record, self._job)

    def end(self) -> None:
        for block in self._unfinished.left():
            self._shell.write(self._lines.text(block))


def tell(shell: Shell, record: LogGap | LogNote, job: str) -> None:
    """A mark on standard error; with `-q` only of what is missing."""
    if isinstance(record, LogGap):
        shell.warn(gap_mark(record))
    elif mark := note_mark(record, job):
        (shell.warn if record.kind in _MUST_SEE else shell.note)(mark)


class JsonView:
    """An object for each line, gap and note, on standard output."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._unfinished = _Unfinished()

    def show(self, record: LogRecord) -> None:
        if isinstance(record, LogBlock):
            if self._unfinished.whole(record):
                self._shell.write(json_lines(record))
            return
        if isinstance(record, LogNote) and record.kind is NoteKind.END:
            self.end()
        self._shell.record(record)

    def end(self) -> None:
        for block in self._unfinished.left():
            self._shell.write(json_lines(block))


class TerminalView:
    """A terminal that follows."""

    def __init__(self, shell: Shell, lines: LineText, job: str, *, sample: bool) -> None:
        self._shell = shell
        self._job = job
        self._silent: set[str] = set()
        now = shell.clock.monotonic()
        self._live = LiveView(shell.style, lines, now=now, sample=sample)

    def show(self, record: LogRecord) -> None:
        self._write(self._text(record))

    def _text(self, record: LogRecord) -> str:
        now = self._shell.clock.monotonic()
        if isinstance(record, LogBlock):
            self._silent.discard(record.node)
            return self._live.block(record, now)
        if isinstance(record, LogGap):
            return self._live.mark(gap_mark(record))
        if record.kind is NoteKind.ALIVE:
            return self._live.alive(now, self._answering(record))
        if record.kind is NoteKind.DISCONNECTED and not record.node:
            return self._live.trouble(note_mark(record, self._job))
        if record.kind in _SILENT:
            self._silent.add(record.node)
        elif record.kind is NoteKind.RECONNECTED:
            self._silent.discard(record.node)
        elif record.kind is NoteKind.END:
            self._write(self._live.end())
        return self._live.mark(note_mark(record, self._job))

    def _answering(self, note: LogNote) -> str:
        if self._silent:
            return f"{inert(NodeSet(self._silent).fold())} not answering"
        return note.words or "link ok"

    def end(self) -> None:
        self._write(self._live.end())

    def _write(self, text: str) -> None:
        if text:
            self._shell.write(text)


def paged(shell: Shell, records: Iterable[LogRecord], lines: LineText, job: str) -> None:
    """A terminal that looks back: all of it, through a pager if it is long."""
    shell.page(_pages(shell, records, lines, job))


def _pages(shell: Shell, records: Iterable[LogRecord], lines: LineText, job: str) -> Iterator[str]:
    repeats = Repeats(shell.style.glyph("×", "x"))
    unfinished = _Unfinished()
    for record in records:
        if isinstance(record, LogBlock):
            if unfinished.whole(record):
                yield _repeated(repeats, lines, record)
            continue
        mark = gap_mark(record) if isinstance(record, LogGap) else note_mark(record, job)
        if mark:
            left = [_repeated(repeats, lines, block) for block in unfinished.left()]
            shown = [*repeats.end(), shell.style.paint(mark, "yellow")]
            yield "".join(left) + "".join(f"{line}\n" for line in shown)
    for block in unfinished.left():
        yield _repeated(repeats, lines, block)
    yield "".join(f"{line}\n" for line in repeats.end())


def _repeated(repeats: Repeats, lines: LineText, block: LogBlock) -> str:
    head = lines.head(block)
    shown = [each for line in lines.lines(block) for each in repeats.take(head, line)]
    return "".join(f"{line}\n" for line in shown)
