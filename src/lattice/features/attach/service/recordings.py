"""The records of recordings in the state store.

    attach/alone/ALLOCATION            the one open session of a sensitive allocation
    attach/recordings/open/SESSION     from before the session until its recording is anchored
    attach/recordings/past/SESSION     after that, until the retention removes the recording

The first two are written in one commit with the record of the session. So of many who begin one at
the same time, one wins.

These records only show where things are. What a recording must contain is in the audit log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

import msgspec

from lattice.base.errors import Conflict, NotFound
from lattice.domain.audit import AuditEntry
from lattice.domain.recording import RecordingName
from lattice.domain.recording_path import RecordingPath
from lattice.domain.state import Change, Delete, Entry, Expect, Put, StateStore
from lattice.features.attach.recording_frames import RecordingOrder

ALONE = "attach/alone/"
OPEN_RECORDINGS = "attach/recordings/open/"
PAST_RECORDINGS = "attach/recordings/past/"


class RecordingEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One recording, from before its session to its entry in the audit log."""

    cluster: str
    allocation: str
    session: str
    user: str
    subject: str
    role: str
    tenant: str
    account: str
    node: str
    begun: datetime
    rows: int
    columns: int
    terminal: str
    command: str
    sequence: int = 0
    """The number of the entry in the audit log that names it; 0 while it is open."""
    closed: datetime | None = None

    @property
    def name(self) -> RecordingName:
        return RecordingName(self.cluster, self.allocation, self.session)

    @property
    def path(self) -> RecordingPath:
        return RecordingPath(name=self.name, tenant=self.tenant, account=self.account)

    @property
    def order(self) -> RecordingOrder:
        """What the recorder on the node has to know."""
        return RecordingOrder(
            cluster=self.cluster,
            allocation=self.allocation,
            session=self.session,
            rows=self.rows,
            columns=self.columns,
            terminal=self.terminal,
            command=self.command,
            timestamp=int(self.begun.timestamp()),
        )


@dataclass(frozen=True, slots=True)
class StoredRecording:
    entry: RecordingEntry
    revision: int


class _Alone(msgspec.Struct, frozen=True):
    session: str
    user: str
    node: str
    since: datetime


def alone_key(allocation: str) -> str:
    return ALONE + quote(allocation, safe="")


def beginning(recording: RecordingEntry) -> tuple[list[Expect], list[Change]]:
    """What a session with this recording adds to the commit of its record."""
    alone, opened = alone_key(recording.allocation), OPEN_RECORDINGS + recording.session
    held = _Alone(recording.session, recording.user, recording.node, recording.begun)
    return (
        [Expect(alone, 0), Expect(opened, 0), Expect(PAST_RECORDINGS + recording.session, 0)],
        [Put(alone, msgspec.json.encode(held)), Put(opened, msgspec.json.encode(recording))],
    )


def conflict(entry: Entry, session: str) -> Conflict | None:
    """Who has the one session of an allocation; None if it is this session."""
    try:
        held = msgspec.json.decode(entry.value, type=_Alone)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Conflict("Another terminal is open in this allocation.")
    if held.session == session:
        return None
    return Conflict(
        f"{held.user} has a terminal in this allocation, on {held.node} since "
        f"{held.since:%Y-%m-%d %H:%M:%S} UTC: sensitive work has one at a time.",
        hint="It is free again when that session has ended.",
    )


class Recordings:
    """Reads and changes the records. Raises `Unavailable` while the store is away."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def all_open(self) -> tuple[StoredRecording, ...]:
        """Those that are not anchored yet."""
        entries = (await self._state.list(OPEN_RECORDINGS)).entries
        return tuple(found for each in entries if (found := _read(each)) is not None)

    async def of(self, session: str) -> RecordingEntry:
        """The recording of a session. Raises `NotFound`."""
        for prefix in (PAST_RECORDINGS, OPEN_RECORDINGS):
            entry = await self._state.get(prefix + session)
            found = _read(entry) if entry is not None else None
            if found is not None:
                return found.entry
        raise no_recording()

    async def get_open(self, session: str) -> StoredRecording | None:
        entry = await self._state.get(OPEN_RECORDINGS + session)
        return _read(entry) if entry is not None else None

    async def past(self) -> tuple[StoredRecording, ...]:
        """Those that the audit log names."""
        entries = (await self._state.list(PAST_RECORDINGS)).entries
        return tuple(found for each in entries if (found := _read(each)) is not None)

    async def forget(self, stored: StoredRecording) -> None:
        """Remove the record of a recording that was removed."""
        key = PAST_RECORDINGS + stored.entry.session
        await self._state.commit([Expect(key, stored.revision)], [Delete(key)])

    async def anchored(self, stored: StoredRecording, end: AuditEntry) -> bool:
        """Move the record: this entry names the recording. False if another server did."""
        old = stored.entry
        new = msgspec.structs.replace(old, sequence=end.sequence, closed=end.time)
        opened = OPEN_RECORDINGS + old.session
        changes: list[Change] = [
            Delete(opened),
            Put(PAST_RECORDINGS + old.session, msgspec.json.encode(new)),
        ]
        return await self._state.commit([Expect(opened, stored.revision)], changes) is not None


def no_recording() -> NotFound:
    """The answer for a session without a recording, and for one of others."""
    return NotFound(
        "There is no recording of this session.",
        hint="After its retention it is removed: `lattice audit query --act recording-removed`.",
    )


def _read(entry: Entry) -> StoredRecording | None:
    try:
        found = msgspec.json.decode(entry.value, type=RecordingEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return StoredRecording(found, entry.revision)
