"""A part of a recording, as a server shows it."""

from __future__ import annotations

from dataclasses import dataclass


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
