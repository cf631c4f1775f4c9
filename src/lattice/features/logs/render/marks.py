"""Gaps and notes as lines that can't be mistaken for the job's own. Pure."""

from __future__ import annotations

from dataclasses import replace

from lattice.base.text import inert
from lattice.domain.logs import GapCause, LogKind
from lattice.features.logs.model import LogGap, LogNote, NoteKind
from lattice.features.logs.render.labels import nodes_named

_CAUSES = {
    GapCause.TRUNCATED: "file truncated",
    GapCause.DELETED: "file deleted",
    GapCause.POWER_CUT: "power cut",
    GapCause.DISK_FULL: "disk full on the node",
    GapCause.UNREADABLE: "file can't be read",
    GapCause.UNKNOWN: "unknown cause",
    GapCause.TAMPERED: "changed or removed in the object store since it was sealed",
}
_TEXTS = {
    NoteKind.NODE_LOST: "node lost",
    NoteKind.ARCHIVE_AWAY: "the archive does not answer; older lines are missing here",
    NoteKind.NOT_ARCHIVING: "not archiving: what is shown here may not be kept",
    NoteKind.CLOCK_CORRECTED: "the node's clock is off; times are corrected",
    NoteKind.TAMPERED: "stored output is not what was sealed",
    NoteKind.ATTEMPT_ENDED: "attempt ended; the next one follows",
}


def size(count_bytes: float) -> str:
    """`4.1 KB`, in powers of 1000."""
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


def gap_mark(gap: LogGap) -> str:
    """`--- n2: 4.1 KB missing (file truncated) ---`."""
    stream = "" if gap.stream is LogKind.STDOUT else f" {gap.stream.value}"
    return _mark(f"{inert(gap.node)}{stream}: {gap_text(gap.cause, gap.lost_bytes, gap.offset)}")


def gap_text(cause: GapCause, lost_bytes: int | None, offset: int) -> str:
    """`4.1 KB missing (file truncated)`."""
    lost = "an unknown amount" if lost_bytes is None else size(lost_bytes)
    if cause is GapCause.QUOTA:
        return f"truncated by quota at {_binary(offset)}, {lost} missing"
    return f"{lost} missing ({_CAUSES[cause]})"


def _binary(count_bytes: int) -> str:
    """`10 GiB`, as quotas are configured."""
    value, unit = float(count_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"


def note_mark(note: LogNote, job: str) -> str:
    """The line for a note; empty for a sign of life."""
    kind, detail = note.kind, inert(note.words)
    if kind is NoteKind.ALIVE:
        return ""
    if kind is NoteKind.END:
        how = f" ({detail})" if detail else ""
        return _mark(f"end of job {inert(job)}{how}{_missed(note)}")
    if kind is NoteKind.DISCONNECTED:
        why = f" ({detail.removesuffix('.')})" if detail else ""
        text = f"disconnected{why}; trying again"
    elif kind is NoteKind.RECONNECTED:
        after = "" if note.seconds is None else f" after {seconds(note.seconds)}"
        text = f"reconnected{after}{_missed(note)}"
    elif kind is NoteKind.STALLED:
        since = f" for {seconds(note.seconds)}" if note.seconds is not None else ""
        text = detail or f"not answering{since}; what it writes comes later"
    else:
        text = detail or _TEXTS[kind]
    node = inert(note.node)
    return _mark(f"{node}: {text}" if node and not text.startswith(f"{node}:") else text)


class NotesAlike:
    """Groups equal notes of several nodes into one."""

    def __init__(self) -> None:
        self._alike: dict[tuple[NoteKind, str], list[LogNote]] = {}
        self.nodes: set[str] = set()

    def take(self, note: LogNote) -> None:
        # The text has the node's name, which the mark has anyway.
        text = note.words.replace(f" of node {note.node}", "").replace(note.node, "it")
        self._alike.setdefault((note.kind, text), []).append(note)
        self.nodes.add(note.node)

    def end(self) -> list[LogNote]:
        """The grouped notes, in the order of the first of each group."""
        grouped = []
        for (_, text), notes in self._alike.items():
            if len(notes) == 1:
                grouped += notes
                continue
            longest_s = max((each.seconds or 0.0 for each in notes), default=0.0)
            lines = [each.lines for each in notes if each.lines is not None]
            grouped.append(
                replace(
                    notes[0],
                    node=nodes_named(sorted({each.node for each in notes})),
                    words=text,
                    seconds=longest_s or None,
                    lines=sum(lines) if lines else None,
                )
            )
        self._alike.clear()
        self.nodes.clear()
        return grouped


def _missed(note: LogNote) -> str:
    if note.lines is None:
        return ""
    return f", {note.lines:,} {'line' if note.lines == 1 else 'lines'} missed"


def _mark(text: str) -> str:
    return f"--- {text} ---"
