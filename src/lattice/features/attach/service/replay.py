"""Reads recordings for the owner and the tenant's reviewer. Each read is in the audit log first.

What a recording must contain is in the entry of the audit log that names it, and nowhere else. The
record of the recording only says which entry that is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from lattice.access.actor import Actor
from lattice.access.output import OutputAccess
from lattice.access.sensitive_acts import act_event
from lattice.base.errors import DataUnavailable, NotFound
from lattice.domain.allocation import Allocation
from lattice.domain.asciicast import event_line
from lattice.domain.audit import AuditAct, AuditEntries, AuditTrail
from lattice.domain.recording import (
    Anchor,
    BadRecording,
    ChunkText,
    RecordingPosition,
    RecordingVerifier,
    position_after,
)
from lattice.domain.recording_proof import RecordedSession, recorded_session
from lattice.domain.sealed import DataKey
from lattice.domain.stream import is_session
from lattice.features.attach.service.recordings import RecordingEntry, Recordings, no_recording
from lattice.features.attach.sessions import RecordingPart
from lattice.foundation.recording_store import RecordingConflict, RecordingStore

_PART_BYTES = 1024 * 1024
_PART_CHUNKS = 500
_MOST_KNOWN = 256
"""Entries never change, so they are remembered."""


class Replay:
    """One for each server."""

    def __init__(
        self,
        access: OutputAccess,
        recordings: Recordings,
        trail: AuditTrail,
        entries: AuditEntries,
        store: RecordingStore | None = None,
        key_of: Callable[[str], Awaitable[DataKey]] | None = None,
    ) -> None:
        """Without bucket and keys there is no recording."""
        self._access = access
        self._recordings = recordings
        self._trail = trail
        self._entries = entries
        self._store = store
        self._key_of = key_of
        self._known: OrderedDict[int, RecordedSession] = OrderedDict()

    async def read(self, actor: Actor, session: str, begin: int) -> RecordingPart:
        """The chunks from this number on. Raises `NotFound` as for what is not the caller's."""
        if not is_session(session) or self._store is None or self._key_of is None:
            raise no_recording()
        entry = await self._recordings.of(session)
        try:
            found = await self._access.find(actor, entry.allocation)
        except NotFound:
            raise no_recording() from None
        if found.allocation.ref != entry.allocation:
            raise no_recording()
        await self._audit(actor, found.allocation, entry, begin)
        recorded = await self._end_of(entry) if entry.sequence else None
        key = await self._key_of(entry.allocation)
        return await self._part(self._store, entry, recorded, key, begin)

    async def _end_of(self, entry: RecordingEntry) -> RecordedSession:
        """What the audit log says of a recording. Raises `DataUnavailable`."""
        known = self._known.get(entry.sequence)
        if known is None:
            named = await self._entries.entry(entry.sequence)
            known = recorded_session(named) if named is not None else None
        if known is None or known.path != entry.path:
            raise DataUnavailable(
                f"Entry {entry.sequence} of the audit log does not name this recording.",
                hint="Somebody changed the agreed state. `lattice audit verify` checks recordings.",
            )
        self._known[entry.sequence] = known
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _audit(
        self, actor: Actor, allocation: Allocation, entry: RecordingEntry, begin: int
    ) -> None:
        detail = f"session {entry.session} from chunk {begin}"
        act = AuditAct.RECORDING_READ
        await self._trail.require(act_event(actor, act, allocation, detail, node=entry.node))

    async def _part(
        self,
        store: RecordingStore,
        entry: RecordingEntry,
        recorded: RecordedSession | None,
        key: DataKey,
        begin: int,
    ) -> RecordingPart:
        bad: BadRecording | None = None
        lines: list[bytes] = []
        following, reason, begin_us = 0, recorded.reason if recorded else "", 0
        anchor = recorded.anchor if recorded is not None else None
        try:
            verifier = await self._verifier(store, entry, anchor, key, begin)
            begin_us = verifier.position.totals.last_us
            size = 0
            async for number, chunk in store.chunks(entry.path, begin):
                # A chunk may have megabytes: others must not wait until it is opened.
                more, closing = await asyncio.to_thread(_read, verifier, number, chunk)
                lines += more
                size += sum(map(len, more))
                reason = closing or reason
                if not verifier.is_over and (
                    size >= _PART_BYTES or number - begin + 1 >= _PART_CHUNKS
                ):
                    following = number + 1
                    break
            if not following and anchor is not None:
                verifier.finish()
        except BadRecording as problem:
            bad, following = problem, 0
        return RecordingPart(
            session=entry.session,
            allocation=entry.allocation,
            user=entry.user,
            node=entry.node,
            begin=begin,
            begin_us=begin_us,
            lines=b"".join(lines).decode("ascii"),
            next=following,
            closed=anchor is not None,
            reason=reason,
            bad_chunk=bad.chunk if bad is not None else None,
            problem=bad.problem if bad is not None else "",
        )

    async def _verifier(
        self,
        store: RecordingStore,
        entry: RecordingEntry,
        anchor: Anchor | None,
        key: DataKey,
        begin: int,
    ) -> RecordingVerifier:
        position: RecordingPosition | None = None
        if begin:
            try:
                before = await store.chunk(entry.path, begin - 1)
            except RecordingConflict:
                raise BadRecording(begin - 1, "it is missing") from None
            position = await asyncio.to_thread(position_after, key, entry.name, before)
        return RecordingVerifier(entry.name, anchor, key, position)


def _read(verifier: RecordingVerifier, number: int, chunk: bytes) -> tuple[list[bytes], str]:
    """The lines of a chunk, and the reason of the end if it is the last one."""
    text = verifier.take(number, chunk)
    assert text is not None
    return _lines(text), text.reason


def _lines(text: ChunkText) -> list[bytes]:
    lines = [text.header.line()] if text.header is not None else []
    before_us = text.begin.last_us
    for event in text.events:
        lines.append(event_line(event, before_us))
        before_us = max(before_us, event.at_us)
    return lines
