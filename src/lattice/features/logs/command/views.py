"""The outputs for records of a stream: plain text, a terminal, a pager, lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from threading import Lock
from typing import Generic, TypeAlias, TypeVar

from lattice.base.escapes import plain
from lattice.base.shell import Shell
from lattice.features.logs.blocks import LinesFrame
from lattice.features.logs.model import LogBlock, LogGap, LogNote, LogRecord, NoteKind
from lattice.features.logs.render.alike import Alike, Repeats, shown
from lattice.features.logs.render.labels import nodes_named
from lattice.features.logs.render.lines import LineText
from lattice.features.logs.render.live import LiveView
from lattice.features.logs.render.marks import NotesAlike, gap_mark, note_mark
from lattice.features.logs.stream_dedup import AnyRecord


def json_lines(block: LogBlock) -> str:
    """One object for each line, with its number and its unchanged text."""
    time = block.time.isoformat().replace("+00:00", "Z")
    before = json.dumps(
        {
            "type": "line",
            "node": block.node,
            "stream": block.stream.value,
            "source": block.source,
            "rank": block.rank,
        }
    )[:-1]
    after = json.dumps({"time": time, "late": block.late})[1:-1]
    rest = ', "unfinished": true}\n' if block.unfinished else "}\n"
    return "".join(
        f'{before}, "seq": {seq}, {after}, "text": "{text}"{rest}'
        for seq, text in enumerate(_texts(block.text), block.seq)
    )


def _texts(text: str) -> list[str]:
    """Its lines, escaped for JSON strings."""
    if "\\" not in text and plain(text):
        # All at once: only a line feed becomes a backslash and an n.
        lines = json.dumps(text, ensure_ascii=False)[1:-1].split("\\n")
    else:
        lines = [_text(line)[1:-1] for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _text(line: str) -> str:
    # Fully escaped if it could control a terminal.
    return json.dumps(line, ensure_ascii=not line.isprintable())


_SILENT = frozenset({NoteKind.STALLED, NoteKind.DISCONNECTED, NoteKind.NODE_LOST})
_MUST_SEE = frozenset(
    {NoteKind.NODE_LOST, NoteKind.ARCHIVE_AWAY, NoteKind.NOT_ARCHIVING, NoteKind.TAMPERED}
)
_TOGETHER = timedelta(seconds=1)
_MOST_HELD = 5000
_NOTES_S = 0.5


_B = TypeVar("_B", LogBlock, LogBlock | LinesFrame)


class _Unfinished(Generic[_B]):
    """Beginnings of lines, until the whole line comes, or the stream ends without it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], _B] = {}

    def whole(self, block: _B) -> bool:
        """True if the block has whole lines; else it is kept."""
        key = (block.node, block.stream.value, block.source)
        if block.unfinished:
            self._open[key] = block
            return False
        self._open.pop(key, None)
        return True

    def left(self) -> list[_B]:
        """The beginnings that never got their end."""
        left = list(self._open.values())
        self._open.clear()
        return left


class LogLinesView:
    """Whole lines in the order they come, to one function; gaps and notes to another."""

    def __init__(
        self,
        write: Callable[[LogBlock | LinesFrame], None],
        report: Callable[[LogGap | LogNote], None],
    ) -> None:
        self._write = write
        self._report = report
        self._unfinished: _Unfinished[LogBlock | LinesFrame] = _Unfinished()

    def show(self, record: AnyRecord) -> None:
        if isinstance(record, LogBlock | LinesFrame):
            if self._unfinished.whole(record):
                self._write(record)
            return
        if isinstance(record, LogNote) and record.kind is NoteKind.END:
            self.end()
        self._report(record)

    def end(self) -> None:
        for block in self._unfinished.left():
            self._write(block)


def plain_view(shell: Shell, lines: LineText, job: str) -> LogLinesView:
    """Lines to standard output, everything about them to standard error."""

    def write(block: LogBlock | LinesFrame) -> None:
        unchanged = lines.unchanged(block) if isinstance(block, LinesFrame) else None
        if unchanged is not None:
            shell.write_bytes(unchanged)
            return
        for each in _decoded(block):
            shell.write(lines.text(each))

    return LogLinesView(write, lambda record: print_mark(shell, record, job))


def json_view(shell: Shell) -> LogLinesView:
    """An object for each line, gap and note, on standard output."""

    def write(block: LogBlock | LinesFrame) -> None:
        for each in _decoded(block):
            shell.write(json_lines(each))

    return LogLinesView(write, shell.record)


def _decoded(block: LogBlock | LinesFrame) -> Iterable[LogBlock]:
    return block.records() if isinstance(block, LinesFrame) else (block,)


def print_mark(shell: Shell, record: LogGap | LogNote, job: str) -> None:
    """Print a mark on standard error; with `-q` only what must be seen."""
    if isinstance(record, LogGap):
        shell.warn(gap_mark(record))
    elif mark := note_mark(record, job):
        (shell.warn if record.kind in _MUST_SEE else shell.note)(mark)


class LogTerminalView:
    """A terminal that follows."""

    def __init__(self, shell: Shell, lines: LineText, job: str, *, sample: bool) -> None:
        self._shell = shell
        self._job = job
        self._silent: set[str] = set()
        now = shell.clock.monotonic()
        keys = shell.interactive
        self._live = LiveView(shell.style, lines, now=now, sample=sample, keys=keys)
        self._stop_keys: Callable[[], None] | None = None
        self._notes = NotesAlike()
        self._notes_due: float | None = None
        self._alone = Lock()
        self._take_back: Callable[[], None] | None = None

    def show(self, record: LogRecord) -> None:
        with self._alone:
            self._write(self._text(record))
            self._await_others()
            self._await_keys()

    def _await_keys(self) -> None:
        """Read keys only during a flood: at other times the input belongs to the user's shell."""
        if self._live.samples == (self._stop_keys is not None):
            return
        if self._stop_keys is not None:
            self._stop_keys()
            self._stop_keys = None
        elif self._shell.interactive:
            self._stop_keys = self._shell.keys(self._pressed)

    def _pressed(self, key: str) -> None:
        if key == "f":
            with self._alone:
                self._write(self._live.show_all())

    def _await_others(self) -> None:
        """Schedule the output of held lines and notes for the time they are due."""
        due = [each for each in (self._live.due, self._notes_due) if each is not None]
        if due and self._take_back is None:
            left_s = max(min(due) - self._shell.clock.monotonic(), 0.0)
            self._take_back = self._shell.later(left_s, self._settle)

    def _settle(self) -> None:
        with self._alone:
            self._take_back = None
            now = self._shell.clock.monotonic()
            if self._live.due is not None and self._live.due <= now:
                self._write(self._live.settle())
            if self._notes_due is not None and self._notes_due <= now:
                self._write(self._flush_notes())
            self._await_others()

    def _text(self, record: LogRecord) -> str:
        now = self._shell.clock.monotonic()
        if isinstance(record, LogBlock):
            self._silent.discard(record.node)
            notes = self._flush_notes() if record.node in self._notes.nodes else ""
            return notes + self._live.block(record, now)
        if isinstance(record, LogGap):
            return self._flush_notes() + self._live.mark(gap_mark(record))
        if record.kind is NoteKind.ALIVE:
            return self._flush_notes() + self._live.alive(now, self._answering(record))
        if record.kind is NoteKind.DISCONNECTED and not record.node:
            return self._flush_notes() + self._live.trouble(note_mark(record, self._job))
        if record.node:
            return self._about_a_node(record, now)
        notes = self._flush_notes()
        if record.kind is NoteKind.END:
            notes += self._live.end()
        return notes + self._live.mark(note_mark(record, self._job))

    def _about_a_node(self, note: LogNote, now: float) -> str:
        """Hold a note for a moment: what happens to one node often happens to hundreds."""
        if note.kind in _SILENT:
            self._silent.add(note.node)
        elif note.kind is NoteKind.RECONNECTED:
            self._silent.discard(note.node)
        notes = self._flush_notes() if note.node in self._notes.nodes else ""
        self._notes.take(note)
        if self._notes_due is None:
            self._notes_due = now + _NOTES_S
        return notes

    def _flush_notes(self) -> str:
        self._notes_due = None
        marks = [note_mark(each, self._job) for each in self._notes.end()]
        return "".join(map(self._live.mark, filter(None, marks)))

    def _answering(self, note: LogNote) -> str:
        if self._silent:
            return f"{nodes_named(sorted(self._silent))} not answering"
        return note.words or "link ok"

    def end(self) -> None:
        with self._alone:
            if self._take_back is not None:
                self._take_back()
                self._take_back = None
            if self._stop_keys is not None:
                self._stop_keys()
                self._stop_keys = None
            self._write(self._flush_notes() + self._live.end())

    def _write(self, text: str) -> None:
        if text:
            self._shell.write(text)


LogView: TypeAlias = LogLinesView | LogTerminalView


def paged(shell: Shell, records: Iterable[LogRecord], lines: LineText, job: str) -> None:
    """Show everything on a terminal, through a pager if it is long."""
    shell.page(_Pages(shell, lines, job).of(records))


class _Pages:
    """Records as text for a pager.

    Nobody waits for single lines here, so lines within a second are grouped by their times.
    """

    def __init__(self, shell: Shell, lines: LineText, job: str) -> None:
        self._shell = shell
        self._lines = lines
        self._job = job
        self._repeats = Repeats(shell.style.glyph("×", "x"))
        self._alike = Alike()
        self._until: datetime | None = None
        self._unfinished: _Unfinished[LogBlock] = _Unfinished()

    def of(self, records: Iterable[LogRecord]) -> Iterator[str]:
        for record in records:
            if isinstance(record, LogBlock):
                if self._unfinished.whole(record):
                    yield self._block(record)
                continue
            mark = gap_mark(record) if isinstance(record, LogGap) else note_mark(record, self._job)
            if mark:
                yield self._rest() + self._shell.style.paint(mark, "yellow") + "\n"
        yield self._rest()

    def _block(self, block: LogBlock) -> str:
        head = self._lines.head(block)
        settled: list[str] = []
        if head.writer is None:
            settled = self._settled()
            for line in self._lines.lines(block):
                settled += self._repeats.take(head, line)
            return _ended(settled)
        if self._until is None or block.time > self._until or self._alike.held > _MOST_HELD:
            settled = self._settled()
            self._until = block.time + _TOGETHER
        self._alike.take(head, self._lines.lines(block))
        return _ended(settled)

    def _settled(self) -> list[str]:
        return shown(self._alike.end(), self._lines, self._repeats)

    def _rest(self) -> str:
        left = "".join(map(self._block, self._unfinished.left()))
        return left + _ended([*self._settled(), *self._repeats.end()])


def _ended(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
