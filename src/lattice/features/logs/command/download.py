"""`lattice logs --download`: the exact bytes of each stream, in files; it resumes partial files."""

from __future__ import annotations

import json
import os
from urllib.parse import quote

from lattice.base.errors import DataUnavailable, UsageError
from lattice.base.shell import Shell
from lattice.base.style import Style
from lattice.base.text import cells, cut, inert
from lattice.features.logs import operations
from lattice.features.logs.command.options import is_chosen
from lattice.features.logs.model import LogStreamFacts, LogStreams
from lattice.features.logs.render.marks import size

_CELLS = 24
_MANIFEST = "logs.json"
_REPAINT_S = 0.2


class Rate:
    """Bytes a second over the last 5 seconds."""

    def __init__(self, now: float, done: int) -> None:
        self._points = [(now, done)]

    def at(self, now: float, done: int) -> float:
        """Add a point and return the rate."""
        self._points.append((now, done))
        while len(self._points) > 2 and now - self._points[0][0] > 5.0:
            self._points.pop(0)
        first_at, first = self._points[0]
        return (done - first) / (now - first_at) if now > first_at else 0.0


def bar(name: str, done: int, total: int, rate: float, style: Style) -> str:
    """`n1.batch.stdout  ████████░░░░  41 %  4.1 MB of 10.0 MB  1.2 MB/s  5 s left`."""
    share = min(done / total, 1.0) if total else 1.0
    full = int(share * _CELLS)
    drawn = style.glyph("█", "#") * full + style.glyph("░", ".") * (_CELLS - full)
    left = ""
    if rate > 0 and total > done:
        left = f"  {_left((total - done) / rate)} left"
    tail = f"  {int(share * 100):3} %  {size(done)} of {size(total)}  {size(rate)}/s{left}"
    width = (style.width or 80) - 1
    room = width - cells(drawn) - cells(tail) - 2
    if room < 8:
        return cut(f"{name}{tail}", width)
    return f"{cut(name, room)}  {drawn}{tail}"


def _left(value: float) -> str:
    whole = int(value) + 1
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


def download(shell: Shell, reference: str, folder: str, choice: operations.LogChoice) -> int:
    """Download every chosen stream, one after the other."""
    found = shell.call(operations.list_streams(reference, attempt=choice["attempt"]))
    streams = [each for each in found.streams if is_chosen(each, choice)]
    if not streams:
        raise DataUnavailable("There are no logs of that.", hint="Leave out --node or --rank.")
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib is slow to load
    _claim(folder, found)
    total = sum(each.bytes for each in streams)
    progress = _Progress(shell, total)
    try:
        for each in streams:
            _one(shell, reference, found, each, folder, progress)
    except KeyboardInterrupt:
        progress.end()
        shell.warn(f"Stopped; what is there is kept. Go on with: {_again(reference, folder)}")
        raise
    except BaseException:
        progress.end()
        raise
    progress.end()
    files = "1 file" if len(streams) == 1 else f"{len(streams)} files"
    shell.note(f"{files}, {size(progress.done)}, in {inert(folder)}")
    if not found.finished:
        shell.note(
            f"The job goes on; the same again fetches what is new: {_again(reference, folder)}"
        )
    return 0


def _again(reference: str, folder: str) -> str:
    return f"lattice logs {inert(reference)} --download {inert(folder)}"


def _claim(folder: str, found: LogStreams) -> None:
    """Write or check the manifest: logs of two jobs must not be joined into one file."""
    path = f"{folder}/{_MANIFEST}"
    mine = {"allocation": found.allocation, "attempt": found.attempt}
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            theirs = json.load(file)
    except FileNotFoundError:
        with open(_new(path), "w", encoding="utf-8") as file:
            json.dump(mine, file)
            file.write("\n")
        return
    except (OSError, ValueError):
        theirs = None
    if theirs != mine:
        raise UsageError(
            f"{folder} holds the logs of something else", hint="Name another folder, or empty it."
        )


def _new(path: str) -> int:
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def file_name(each: LogStreamFacts) -> str:
    """`n1.batch.stdout.log`, with unsafe characters escaped."""
    name = f"{quote(each.node, safe='')}.{quote(each.source, safe='~+')}.{each.stream.value}.log"
    return "%2E" + name[1:] if name.startswith(".") else name


def _one(
    shell: Shell,
    reference: str,
    found: LogStreams,
    each: LogStreamFacts,
    folder: str,
    progress: _Progress,
) -> None:
    final = f"{folder}/{file_name(each)}"
    part = f"{final}.part"
    if os.path.exists(final) and not os.path.exists(part):  # noqa: PTH110
        os.rename(final, part)  # noqa: PTH104
    with open(_new(part), "ab") as file:
        have = file.seek(0, os.SEEK_END)
        if have > each.bytes:
            raise UsageError(
                f"{part} is longer than the log it should be of", hint="Move it out of the way."
            )
        progress.begin(file_name(each), have)
        call = operations.raw_logs(
            reference,
            node=each.node,
            stream=each.stream.value,
            source=each.source,
            attempt=found.attempt,
            offset=have,
        )
        if have < each.bytes or not found.finished:
            for piece in shell.fetch(call):
                file.write(piece)
                progress.came(len(piece))
    os.rename(part, final)  # noqa: PTH104


class _Progress:
    """The progress bar on a terminal; no output elsewhere."""

    def __init__(self, shell: Shell, total: int) -> None:
        self._shell = shell
        self._total = total
        self._name = ""
        self._rate = Rate(shell.clock.monotonic(), 0)
        self._painted_at: float | None = None
        self.done = 0

    def begin(self, name: str, have: int) -> None:
        self._name = name
        self.done += have
        self._rate = Rate(self._shell.clock.monotonic(), self.done)
        self._paint()

    def came(self, count: int) -> None:
        self.done += count
        now = self._shell.clock.monotonic()
        if self._painted_at is None or now - self._painted_at >= _REPAINT_S:
            self._paint()

    def _paint(self) -> None:
        if not self._shell.live:
            return
        now = self._painted_at = self._shell.clock.monotonic()
        total = max(self._total, self.done)
        rate = self._rate.at(now, self.done)
        self._shell.write("\r\x1b[K" + bar(self._name, self.done, total, rate, self._shell.style))

    def end(self) -> None:
        if self._painted_at is not None:
            self._shell.write("\r\x1b[K")
            self._painted_at = None
