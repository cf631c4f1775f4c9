"""`lattice replay`: plays the recording of a terminal in sensitive work, or searches it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import DataUnavailable, NotFound, UsageError
from lattice.base.moment import moment
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.domain.asciicast import (
    MICROSECONDS,
    BadCast,
    CastEvent,
    CastHeader,
    CastKind,
    plain_lines,
    read_event,
    read_header,
)
from lattice.domain.recording import read_anchor
from lattice.features.attach import operations
from lattice.features.attach.render import harmless, searched
from lattice.features.attach.sessions import RecordingPart

_SESSION = re.compile(r"[0-9a-f]{32}")
_RESTORED = b"\x1b[0m\x1b[?25h\x1b[?1049l\x1b[?2004l\r\n"
_LONGEST_S = 86_400.0


class _Reader:
    """The events of a recording, as far as it is whole."""

    def __init__(self, shell: Shell, session: str) -> None:
        self._shell = shell
        self._session = session
        self.header: CastHeader | None = None
        self.last: RecordingPart | None = None

    def events(self) -> Iterator[CastEvent]:
        begin = 0
        while True:
            part = self._shell.call(operations.read_recording(self._session, begin))
            self.last = part
            yield from self._of(part)
            if not part.next or part.bad_chunk is not None:
                return
            begin = part.next

    def _of(self, part: RecordingPart) -> Iterator[CastEvent]:
        lines = part.lines.encode("ascii", "replace").splitlines()
        at_us = part.begin_us
        try:
            if part.begin == 0 and lines:
                self.header = read_header(lines.pop(0))
            for line in lines:
                event = read_event(line, at_us)
                at_us = event.at_us
                yield event
        except BadCast as problem:
            raise DataUnavailable(f"The server sent no recording: {problem}.") from None


def replay(
    shell: Shell,
    *,
    session: str,
    speed: float | None,
    idle_limit: float | None,
    search: str | None,
    save: str | None,
) -> int:
    """Play, search or store a recording."""
    if search is not None and save is not None:
        raise UsageError("--search and --save don't go together.", hint="Leave one out.")
    reader = _Reader(shell, _chosen(shell, session))
    if save is not None:
        _store(shell, reader, Path(save))
    elif search is not None:
        for at_us, line in searched(reader.events(), search):
            shell.write(f"{_time(at_us)}  {inert(line)}\n")
    else:
        _play(shell, reader, speed or 1.0, idle_limit)
    return _verdict(shell, reader)


def _chosen(shell: Shell, name: str) -> str:
    """The session of this id, or the only recorded one of an allocation."""
    if _SESSION.fullmatch(name):
        return name
    if not re.fullmatch(REFERENCE_PATTERN, name):
        raise UsageError(
            f"{name[:40]!r} is neither a session nor an allocation.",
            hint="A session has 32 hex digits: `lattice sessions --all -o wide` shows it.",
        )
    found: dict[str, operations.EndEntry] = {}
    cursor = ""
    while True:
        page = shell.call(operations.list_ends(name, cursor))
        for row in page.rows:
            recorded = read_anchor(row.detail)
            if recorded is not None:
                found[recorded.session] = row
        cursor = page.cursor
        if not cursor:
            break
    if not found:
        raise NotFound(
            f"You may see no recording of {name} that is closed.",
            hint="One that is open has a session too: `lattice sessions --all -o wide`.",
        )
    if len(found) > 1:
        shell.write(_listed(shell, found))
        raise UsageError(
            f"Job {name} has {len(found)} recordings.",
            hint="Name one of the sessions above: `lattice replay SESSION`.",
        )
    return next(iter(found))


def _listed(shell: Shell, found: dict[str, operations.EndEntry]) -> str:
    now = shell.clock.now()
    return "".join(
        f"{session}  {inert(row.user)} on {inert(row.node)}, "
        f"ended {moment(row.time, shell.style, now)}\n"
        for session, row in found.items()
    )


def _play(shell: Shell, reader: _Reader, speed: float, idle_limit: float | None) -> None:
    before_us, terminal = 0, sys.stdout.isatty()
    rest = b""
    try:
        for event in reader.events():
            pause_s = (event.at_us - before_us) / MICROSECONDS
            before_us = event.at_us
            if idle_limit is not None:
                pause_s = min(pause_s, idle_limit)
            if event.kind is not CastKind.OUTPUT:
                continue
            shell.sleep(pause_s / speed)
            text, rest = harmless(rest + event.data)
            shell.write_bytes(text)
    except KeyboardInterrupt:
        shell.note("Stopped.")
    finally:
        if terminal:
            shell.write_bytes(_RESTORED)


def _store(shell: Shell, reader: _Reader, path: Path) -> None:
    events = reader.events()
    first = next(events, None)
    if reader.header is None:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"{path} can't be written: {error.strerror}.", hint="Name a file that is not there."
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        rest = (first, *events) if first is not None else ()
        file.writelines(plain_lines(reader.header, rest))
    shell.note(f"Stored in {path}. It is plain text: nobody seals it.")


def _verdict(shell: Shell, reader: _Reader) -> int:
    last = reader.last
    if last is None:
        return 0
    if last.bad_chunk is not None:
        shell.warn(
            f"The recording is not whole: chunk {last.bad_chunk}: {inert(last.problem)}. "
            "What was shown is what came before."
        )
        return 1
    if not last.closed:
        shell.note("The recording is still open: its end is not in the audit log yet.")
    else:
        shell.note(f"The recording is whole. The session ended: {_readable(last.reason)}.")
    return 0


def _readable(reason: str) -> str:
    return inert(reason).replace("_", " ")


def _time(at_us: int) -> str:
    seconds, rest = divmod(at_us, MICROSECONDS)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 1000:03}"


def read_factor(text: str) -> float:
    """Parse a speed, or seconds. Raises `UsageError`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= _LONGEST_S:
        raise UsageError(f"{text[:40]!r} is no number for that.", hint="For example 2 or 0.5.")
    return value


REPLAY = Command(
    "replay",
    summary="Play the recording of a terminal in sensitive work",
    text="SESSION is the id of a session, or of an allocation with one recorded session.\n\n"
    "Plays what the terminal showed, at its own pace, and verifies the recording meanwhile: "
    "the first chunk that is missing or was changed is named, and the exit code is 1. With "
    "--search it prints the times and the lines that contain a text. With --save it stores the "
    "recording as asciicast v3, with what was typed.\n\n"
    "Each read is in the audit log first. Escape sequences that ask the terminal something, or "
    "reach beyond its screen, are left out.",
    run=replay,
    params=(
        Argument("session"),
        Option("--speed", metavar="FACTOR", read=read_factor, help="2: twice as fast."),
        Option("--idle-limit", metavar="SECONDS", read=read_factor, help="Shorten pauses to this."),
        Option("--search", metavar="TEXT", help="Print the times and lines with this text."),
        Option("--save", metavar="FILE", help="Store it as asciicast v3 in a new file."),
    ),
    examples=(
        ("lattice replay 7f…c2 --speed 4 --idle-limit 1", "quickly, without long pauses"),
        ("lattice replay 4711", "the only recorded session of a job"),
        ("lattice replay 7f…c2 --search passwd", "when was it on the screen"),
    ),
    permission="the owner of the job; compliance:review for its tenant",
)
