"""Terminal sessions as text: status lines and the table of sessions. Pure."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.asciicast import CastEvent, CastKind
from lattice.features.attach.model import RESUME_S, EndReason, Opened

if TYPE_CHECKING:
    from lattice.features.attach.sessions import AttachSession

_WITHIN = r"[\x00-\x17\x19\x1c-\x1f\x7f]*"
"""Control characters within a sequence: a terminal obeys them, and goes on with the sequence."""
_STRING = rf"\x1b{_WITHIN}[\]PX^_]"
_STRING_END = r"(?:\x07|\x1b\\)"
_CONTROL = rf"\x1b{_WITHIN}\[(?:{_WITHIN}[0-?])*(?:{_WITHIN}[ -/])*{_WITHIN}"
_HARMFUL = re.compile(
    rf"{_STRING}.*?{_STRING_END}|\xc2[\x90\x98\x9a\x9b\x9d-\x9f]|\x05|\x1b{_WITHIN}Z"
    rf"|{_CONTROL}[cntxy]|\x1b{_WITHIN}\[(?:{_WITHIN}[0-?])*{_WITHIN}\${_WITHIN}p|\x1b\[>[0-9;]*q|\x1b\[\?u".encode(
        "latin-1"
    ),
    re.DOTALL,
)
"""Strings (OSC, DCS and kin), reports (DA, DSR, window), and the answerback.

What begins with a control character of two bytes (C1) loses that, and is text then.
"""
_BEGUN = re.compile(
    rf"(?:\x1b{_WITHIN}|{_CONTROL}|{_STRING}(?:(?!{_STRING_END}).)*|\xc2)\Z".encode("latin-1"),
    re.DOTALL,
)
"""A sequence that is not complete at the end of a text."""
_LONGEST_BEGUN = 64 * 1024
_SEQUENCE = re.compile(rf"{_STRING}.*?{_STRING_END}|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]", re.DOTALL)
_LONGEST_LINE = 64 * 1024

_REASONS = {
    EndReason.FAILED: "never started",
    EndReason.NODE_LOST: "node lost",
    EndReason.TOKEN_EXPIRED: "sign-in ended",
    EndReason.OTHER: "ended",
}
"""Reasons that the table names by other words than their value."""


def banner(opened: Opened, now: datetime) -> str:
    """One line: the node, the job, the time left, and how to get help."""
    parts = [inert(opened.node), f"job {inert(opened.job)}"]
    if opened.ends is not None:
        parts.append(f"{duration((opened.ends - now).total_seconds())} left")
    if opened.recorded:
        parts.append("REC ●")
    return f"--- {' · '.join(parts)} · ~? helps ---"


def harmless(text: bytes) -> tuple[bytes, bytes]:
    """Output that a terminal may show, and the beginning of a sequence that goes on later.

    Recorded output is of a stranger. Left out are strings for the terminal itself, such as its
    clipboard or title, and questions that it would answer as if somebody had typed.
    """
    begun = _BEGUN.search(text)
    at = begun.start() if begun is not None else len(text)
    whole, rest = text[:at], text[at:]
    if len(rest) >= _LONGEST_BEGUN:
        # Without the character that begins it, it is text.
        whole, rest = whole + rest[1:], b""
    return _HARMFUL.sub(b"", whole), rest


def searched(events: Iterable[CastEvent], wanted: str) -> Iterator[tuple[int, str]]:
    """The lines of the output that contain a text, each with the time of its first byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    line, begun_us = "", 0
    for event in events:
        if event.kind is not CastKind.OUTPUT:
            continue
        *whole, rest = decoder.decode(event.data).split("\n")
        for part in whole:
            begun_us = begun_us if line else event.at_us
            line = _SEQUENCE.sub("", line + part).rstrip("\r")
            if wanted in line:
                yield begun_us, line
            line = ""
        begun_us = begun_us if line else event.at_us
        line = (line + rest)[-_LONGEST_LINE:]
    if wanted in (line := _SEQUENCE.sub("", line)):
        yield begun_us, line


def lost_line(why: str) -> str:
    """Shown while the client tries to reconnect."""
    return f"--- connection lost ({inert(why)}); reconnecting, ~. gives up ---"


def back_line(away_s: float) -> str:
    """Shown after a reconnect."""
    return f"--- reconnected after {away_s:.1f} s ---"


def suspended_line() -> str:
    """Shown before the client suspends itself."""
    return f"--- suspended; the shell waits {RESUME_S:.0f} s for `fg`, the job goes on ---"


def sessions_table(sessions: Iterable[AttachSession], style: Style, now: datetime) -> str:
    """One row for each session, newest first."""
    columns = [
        Column("ALLOCATION"),
        Column("NODE"),
        Column("USER", least=8),
        Column("STARTED"),
        Column("TIME", right=True),
        Column("END"),
        Column("COMMAND", least=12),
    ]
    if style.wide:
        columns += [Column("SESSION"), Column("BY"), Column("ATTEMPT", right=True)]
    return table(columns, [_row(each, style, now) for each in sessions], style)


def _row(session: AttachSession, style: Style, now: datetime) -> list[Cell]:
    lasted = (session.ended or now) - session.started
    row: list[Cell] = [
        session.allocation.partition("@")[0],
        session.node,
        session.user,
        moment(session.started, style, now),
        duration(lasted.total_seconds()),
        _end(session),
        shlex.join(session.command) or "login shell",
    ]
    if style.wide:
        row += [session.id, session.subject, str(session.attempt)]
    return row


def _end(session: AttachSession) -> Cell:
    if session.ended is None:
        return ("open", "green")
    reason = session.reason or EndReason.OTHER
    text = _REASONS.get(reason) or reason.value.replace("_", " ")
    return f"{text} {session.exit_code}" if session.exit_code is not None else text
