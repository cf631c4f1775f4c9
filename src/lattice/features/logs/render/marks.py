"""What happened to a stream besides lines, as lines that can't be taken for the job's own. Pure."""

from __future__ import annotations

from lattice.base.text import inert
from lattice.domain.logs import GapCause, LogKind
from lattice.features.logs.model import LogGap, LogNote, NoteKind

_CAUSES = {
    GapCause.TRUNCATED: "file truncated",
    GapCause.DELETED: "file deleted",
    GapCause.POWER_CUT: "power cut",
    GapCause.DISK_FULL: "disk full on the node",
    GapCause.QUOTA: "quota reached",
    GapCause.UNREADABLE: "file can't be read",
}
_SAID = {
    NoteKind.NODE_LOST: "node lost",
    NoteKind.ARCHIVE_AWAY: "the archive does not answer; older lines are missing here",
    NoteKind.NOT_ARCHIVING: "not archiving: what is shown here may not be kept",
    NoteKind.CLOCK_CORRECTED: "the node's clock is off; times are corrected",
    NoteKind.ATTEMPT_ENDED: "attempt ended; the next one follows",
}


def size(count_bytes: float) -> str:
    """`4.1 KB`: three digits are enough."""
    for unit in ("B", "KB", "MB", "GB"):
        if count_bytes < 1000:
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.1f} TB"


def seconds(value: float) -> str:
    """`3.2 s`, and from a minute on `2 m 5 s`."""
    if value < 10:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} m {rest} s" if minutes else f"{rest} s"


def number(value: int) -> str:
    """`48 112`."""
    return f"{value:,}".replace(",", " ")


def gap_mark(gap: LogGap) -> str:
    """`--- n2: 4.1 KB missing (file truncated) ---`."""
    lost = "an unknown amount" if gap.lost_bytes is None else size(gap.lost_bytes)
    stream = "" if gap.stream is LogKind.STDOUT else f" {gap.stream.value}"
    return _mark(f"{inert(gap.node)}{stream}: {lost} missing ({_CAUSES[gap.cause]})")


def note_mark(note: LogNote, job: str) -> str:
    """The line for a note; empty for a sign of life."""
    kind, words = note.kind, inert(note.words)
    if kind is NoteKind.ALIVE:
        return ""
    if kind is NoteKind.END:
        how = f" ({words})" if words else ""
        return _mark(f"end of job {inert(job)}{how}{_missed(note)}")
    if kind is NoteKind.DISCONNECTED:
        text = f"disconnected{f' ({words})' if words else ''}; trying again"
    elif kind is NoteKind.RECONNECTED:
        text = f"reconnected{_after(note)}{_missed(note)}"
    elif kind is NoteKind.STALLED:
        since = f" for {seconds(note.seconds)}" if note.seconds is not None else ""
        text = words or f"not answering{since}; what it writes comes later"
    else:
        text = words or _SAID[kind]
    node = inert(note.node)
    return _mark(f"{node}: {text}" if node and not text.startswith(f"{node}:") else text)


def _missed(note: LogNote) -> str:
    if note.lines is None:
        return ""
    return f", {number(note.lines)} {'line' if note.lines == 1 else 'lines'} missed"


def _after(note: LogNote) -> str:
    return f" after {seconds(note.seconds)}" if note.seconds is not None else ""


def _mark(text: str) -> str:
    return f"--- {text} ---"
