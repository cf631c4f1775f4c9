"""Which recordings the audit log names, and what became of each. Pure.

`attach-end` names a recording with its number of chunks and the hash of the last one. So who has
the log and the bucket, and no key, can prove that each recording is whole. The entry of a removal
says that a recording is gone because its retention was over.

The log is read from its beginning, so a removal comes after the recording that it names. A
recording that is not whole therefore waits for its removal. What still waits at the end of the log
is bad.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice.domain.audit import AuditAct, AuditEntry, BadEntry
from lattice.domain.audit_chain import entry_in
from lattice.domain.recording import Anchor, BadRecording, RecordingName, read_anchor
from lattice.domain.recording_path import RecordingPath

MOST_WAITING = 50_000
"""About 400 bytes each."""
MOST_NAMED = 100
_TOO_MANY = f"more than {MOST_WAITING} recordings are not whole"
_ACTS = tuple(
    b'"act":"%s"' % each.value.encode()
    for each in (AuditAct.ATTACH_END, AuditAct.RECORDING_REMOVED)
)
_CLOCKS_APART = timedelta(minutes=10)
"""Two servers may write the two entries."""
_REMOVAL = re.compile(r"session ([0-9a-f]{32}): the retention of (\d{1,5}) days is over", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A recorded session, as an entry of the audit log names it."""

    path: RecordingPath
    anchor: Anchor
    reason: str
    closed: datetime
    sequence: int
    """Of the entry."""

    @property
    def name(self) -> RecordingName:
        return self.path.name


def end_event(name: RecordingName) -> str:
    """The id of the event that names a recording.

    Whoever opens a terminal chooses the id of the session, and may choose an earlier one in another
    allocation. So the id of the event is of the whole name.
    """
    return f"attach-end-{name.session}-{_short(name)}"


def removal_event(name: RecordingName) -> str:
    """The id of the event of its removal."""
    return f"recording-removed-{name.session}-{_short(name)}"


def _short(name: RecordingName) -> str:
    return name.first_link.hex()[:12]


def recorded_session(entry: AuditEntry) -> RecordedSession | None:
    """The recording that an entry names; None if it names none."""
    if entry.act is not AuditAct.ATTACH_END:
        return None
    found = read_anchor(entry.detail)
    if found is None:
        return None
    name = RecordingName(entry.target, entry.allocation, found.session)
    if entry.event != end_event(name):
        return None
    path = RecordingPath(name=name, tenant=entry.of_tenant, account=found.account)
    return RecordedSession(path, found.anchor, found.reason, entry.time, entry.sequence)


def removal_text(session: str, days: int) -> str:
    """The detail of the entry of a removal."""
    return f"session {session}: the retention of {days} days is over"


@dataclass(frozen=True, slots=True)
class RecordingRemoval:
    """An entry that says that a recording was removed."""

    name: RecordingName
    days: int
    time: datetime


def recording_removal(entry: AuditEntry) -> RecordingRemoval | None:
    """The removal that an entry names; None if it names none."""
    if entry.act is not AuditAct.RECORDING_REMOVED:
        return None
    found = _REMOVAL.fullmatch(entry.detail)
    if found is None:
        return None
    name = RecordingName(entry.target, entry.allocation, found[1])
    if entry.event != removal_event(name):
        return None
    return RecordingRemoval(name, int(found[2]), entry.time)


def entries_about_recordings(lines: Iterable[bytes]) -> Iterator[AuditEntry]:
    """Those among verified lines of the log. Quick: few lines are parsed."""
    for line in lines:
        if not any(each in line for each in _ACTS):
            continue
        try:
            entry = entry_in(line)
        except BadEntry:
            continue
        if entry is not None:
            yield entry


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRecording:
    """A recording that is not as the audit log names it."""

    session: str
    allocation: str
    entry: int
    """The number of the entry that names it."""
    chunk: int
    """The first bad chunk."""
    problem: str


class RecordingLedger:
    """What was found of each recording. Entries come in the order of the log."""

    def __init__(self) -> None:
        self.whole = 0
        self.removed = 0
        self.unchecked = 0
        self.unchecked_because = ""
        """The first reason."""
        self._waiting: dict[RecordingName, tuple[datetime, DamagedRecording]] = {}
        self._early: list[DamagedRecording] = []

    @property
    def waits(self) -> bool:
        """True if a recording is not whole, as far as the log was read."""
        return bool(self._waiting)

    @property
    def damaged(self) -> int:
        return len(self._waiting) + len(self._early)

    def add(self, recorded: RecordedSession, bad: BadRecording | None) -> None:
        """Add what was found of a recording: whole, or the first bad chunk."""
        if bad is None:
            self.whole += 1
        elif len(self._waiting) >= MOST_WAITING:
            self.add_unchecked(_TOO_MANY)
        else:
            damaged = DamagedRecording(
                session=recorded.name.session,
                allocation=recorded.name.allocation,
                entry=recorded.sequence,
                chunk=bad.chunk,
                problem=bad.problem,
            )
            self._waiting[recorded.name] = (recorded.closed, damaged)

    def add_unchecked(self, because: str) -> None:
        """Add a recording of which nobody knows whether it is whole."""
        self.unchecked += 1
        self.unchecked_because = self.unchecked_because or because

    def give_up(self, because: str) -> None:
        """Nobody knows of those that are not whole whether they were removed."""
        for _ in self._waiting:
            self.add_unchecked(because)
        self._waiting.clear()

    def remove(self, removal: RecordingRemoval) -> None:
        """Add the removal of a recording. One that is still whole stays whole."""
        found = self._waiting.pop(removal.name, None)
        if found is None:
            return
        closed, damaged = found
        if removal.time - closed >= timedelta(days=removal.days) - _CLOCKS_APART:
            self.removed += 1
        elif len(self._early) < MOST_WAITING:
            early = f"it was removed before its retention of {removal.days} days was over"
            self._early.append(
                DamagedRecording(
                    session=damaged.session,
                    allocation=damaged.allocation,
                    entry=damaged.entry,
                    chunk=damaged.chunk,
                    problem=early,
                )
            )

    def named(self) -> tuple[DamagedRecording, ...]:
        """Those that are bad, `MOST_NAMED` at most, in the order of the log."""
        found = [*self._early, *(each for _, each in self._waiting.values())]
        return tuple(sorted(found, key=lambda each: each.entry)[:MOST_NAMED])
