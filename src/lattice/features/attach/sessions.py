"""The record of a terminal session, a part of its recording, and a browser's ticket for one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.features.attach.model import EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachTicket:
    """Lets a browser open one WebSocket to one allocation, once, within 30 s."""

    ticket: str
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSession:
    """The record of one session: written before it begins and again at its end."""

    id: str
    user: str
    """The Unix user it ran as."""
    subject: str
    """The `sub` of the caller's token."""
    allocation: str
    """Its unambiguous reference."""
    attempt: int
    node: str
    command: tuple[str, ...]
    """Empty: the login shell."""
    terminal: bool
    started: datetime
    ended: datetime | None = None
    reason: EndReason | None = None
    exit_code: int | None = None
    """None if the end of the shell was not seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSessions:
    """The caller's own sessions, newest first."""

    sessions: tuple[AttachSession, ...]
    more: bool = False
    """True if older ones were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPart:
    """Some chunks of the recording of one terminal, verified by the server."""

    session: str
    allocation: str
    user: str
    node: str
    begin: int
    """The number of its first chunk."""
    begin_us: int
    """The time of the last event before it, in microseconds since the recording began."""
    lines: str
    """Lines of asciicast v3: the header, if the part is the first, and events."""
    next: int
    """The number of the next chunk; 0: there is none."""
    closed: bool
    """False while the session is open, or its recording is not in the audit log yet."""
    reason: str = ""
    """Why the session ended."""
    bad_chunk: int | None = None
    """The first chunk that is bad. Nothing of it is shown, nor of those after it."""
    problem: str = ""
    """What is wrong with that chunk."""
