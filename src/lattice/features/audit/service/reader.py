"""Reads the whole audit log, archive and state store together, in pieces of one segment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from lattice.base.signatures import key_name
from lattice.domain.audit import AuditEntry, BadEntry
from lattice.domain.audit_chain import SEAL, ChainBroken, ChainVerifier, entry_in
from lattice.domain.objects import NoObject
from lattice.domain.recording_proof import RecordingLedger, entries_about_recordings
from lattice.domain.state import StateStore
from lattice.features.audit.model import AuditVerdict
from lattice.features.audit.service.archive import (
    AuditArchive,
    BadSegment,
    Segment,
    SegmentName,
    retained_text,
)
from lattice.features.audit.service.chain import BrokenLog
from lattice.features.audit.service.head import HEAD, AuditHead, UnreadableHead, head_of
from lattice.features.audit.service.recordings import RecordingCheck
from lattice.foundation.recording_store import RecordingStore

_LINES_AT_ONCE = 2_000
"""Verified in one turn of a thread, so that the thread never holds the interpreter for long."""


@dataclass(frozen=True, slots=True)
class AuditPiece:
    """A segment of the archive, or the retained part (`name` is None)."""

    head: AuditHead
    name: SegmentName | None = None


class AuditReader:
    """Reads what the writers and archivers of all servers have stored."""

    def __init__(
        self,
        state: StateStore,
        archive: AuditArchive | None,
        recordings: RecordingStore | None = None,
    ) -> None:
        """`recordings` is where the recordings are that the log names; None: nowhere."""
        self._state = state
        self._archive = archive
        self.recordings = recordings

    async def head(self) -> AuditHead | None:
        """None if nothing was ever recorded. Raises `Unavailable`."""
        entry = await self._state.get(HEAD)
        if entry is None:
            return None
        try:
            return head_of(entry)
        except UnreadableHead:
            raise BrokenLog("the record of its head can't be read.") from None

    async def segments(self, head: AuditHead) -> tuple[SegmentName, ...]:
        """The segments that the head counts as archived. Raises `Unavailable`."""
        names = await self.all_segments(head.cluster)
        return tuple(each for each in names if each.first <= head.archived.sequence)

    async def all_segments(self, cluster: str) -> tuple[SegmentName, ...]:
        return () if self._archive is None else await self._archive.names(cluster)

    async def segment(self, name: SegmentName) -> Segment:
        """Raises `NoObject`, `BadSegment` and `Unavailable`."""
        if self._archive is None:
            raise NoObject(name.key)
        return await self._archive.read(name)

    async def newest(self) -> tuple[AuditHead, bytes] | None:
        """The head with its batches that are not archived, as of one moment.

        None if nothing was ever recorded. Raises `Unavailable`.
        """
        head = await self.head()
        while head is not None:
            text = await self.retained(head)
            # Batches may have been archived between the two reads.
            again = await self.head()
            if again is not None and again.archived == head.archived:
                return head, text
            head = again
        return None

    async def retained(self, head: AuditHead) -> bytes:
        """The batches that are not archived. Raises `Unavailable`."""
        return b"".join([each async for each in retained_text(self._state, head)])

    async def entries(self, piece: AuditPiece) -> tuple[AuditEntry, ...]:
        """The entries of a piece in order. What can't be parsed is left out: `verify` names it."""
        if piece.name is None:
            text = await self.retained(piece.head)
        else:
            try:
                text = (await self.segment(piece.name)).text
            except (NoObject, BadSegment):
                return ()
        return await asyncio.to_thread(_entries_in, text)


class Verification:
    """One run over the whole log."""

    def __init__(
        self,
        reader: AuditReader,
        own_keys: frozenset[str],
        anchors: Mapping[int, bytes],
        recordings: RecordingCheck | None = None,
    ) -> None:
        """`own_keys` are names of the servers' keys: one of them must have signed the end.

        `recordings` checks the recordings that the log names.
        """
        self._reader = reader
        self._own_keys = own_keys
        self._anchors = anchors
        self._recordings = recordings
        self._segments = 0

    async def run(self) -> AuditVerdict:
        """Raises `Unavailable` if the log can't be read now."""
        newest = await self._reader.newest()
        if newest is None:
            return self._without_log()
        verifier = ChainVerifier.from_beginning(newest[0].cluster, self._anchors)
        try:
            await self._verify(verifier, *newest)
        except ChainBroken as broken:
            return self._verdict(verifier, broken.sequence, broken.problem)
        return self._verdict(verifier)

    async def _verify(self, verifier: ChainVerifier, head: AuditHead, retained: bytes) -> None:
        names = await self._reader.all_segments(head.cluster)
        for name in names:
            if name.first > head.archived.sequence:
                break
            await self._verify_segment(verifier, name)
        if verifier.point != head.archived:
            raise ChainBroken(
                verifier.point.sequence + 1,
                f"it is missing: entries up to {head.archived.sequence} should be in the archive",
            )
        await _feed(verifier, retained)
        verifier.finish()
        await self._check_end(verifier, head, names)
        await self._check_recordings(retained)
        if self._recordings is not None and self._recordings.ledger.waits:
            await self._read_on(verifier)

    async def _verify_segment(self, verifier: ChainVerifier, name: SegmentName) -> None:
        expected = verifier.point.sequence + 1
        if name.first > expected:
            raise ChainBroken(expected, f"its segment is missing in the archive, before {name.key}")
        if name.first < expected:
            raise ChainBroken(
                name.first, f"the archive has it twice, also in {name.key}: the log was rolled back"
            )
        try:
            segment = await self._reader.segment(name)
        except NoObject:
            raise ChainBroken(expected, f"its segment {name.key} is missing") from None
        except BadSegment as problem:
            raise ChainBroken(expected, f"its segment {name.key} is damaged: {problem}") from None
        if segment.before != verifier.point or segment.cluster != verifier.cluster:
            raise ChainBroken(expected, f"its segment {name.key} has another beginning")
        await _feed(verifier, segment.text)
        if verifier.point.sequence != name.last or verifier.sealed != name.last:
            raise ChainBroken(verifier.point.sequence + 1, f"{name.key} is cut")
        self._segments += 1
        await self._check_recordings(segment.text)

    async def _check_recordings(self, text: bytes) -> None:
        if self._recordings is not None:
            await self._recordings.take(text)

    async def _read_on(self, verifier: ChainVerifier) -> None:
        """Read the entries since the head was read: a recording may have been removed meanwhile."""
        assert self._recordings is not None
        newest, end = await self._reader.newest(), verifier.point.sequence
        if newest is None or newest[0].archived.sequence > end:
            self._recordings.ledger.give_up("the log grew too much meanwhile: verify it again")
            return
        lines = newest[1].splitlines(keepends=True)
        lines = lines[_lines_up_to(lines, newest[0].archived.sequence, end) :]
        await asyncio.to_thread(_feed_lines, verifier, lines)
        verifier.finish()
        self._recordings.take_removals(list(entries_about_recordings(lines)))

    async def _check_end(
        self, verifier: ChainVerifier, head: AuditHead, names: tuple[SegmentName, ...]
    ) -> None:
        end = verifier.point
        if end != head.newest:
            raise ChainBroken(end.sequence + 1, "it is missing: the log does not end at its head")
        if names and names[-1].last > end.sequence:
            raise ChainBroken(
                end.sequence + 1,
                f"the archive has entries up to {names[-1].last}: the state was rolled back",
            )
        if verifier.last_key not in self._own_keys:
            raise ChainBroken(
                1, f"the log is signed by key {verifier.last_key}, which is no server's"
            )

    def _verdict(
        self, verifier: ChainVerifier, first_bad: int | None = None, problem: str = ""
    ) -> AuditVerdict:
        end = verifier.point
        checked = self._recordings
        ledger = checked.ledger if checked is not None else RecordingLedger()
        return AuditVerdict(
            ok=first_bad is None and not ledger.damaged,
            cluster=verifier.cluster,
            entries=end.sequence,
            segments=self._segments,
            anchors=sum(each <= end.sequence for each in self._anchors),
            head=end.link.hex(),
            keys=tuple(map(key_name, verifier.keys.values())),
            first_bad=first_bad,
            problem=problem,
            recordings=ledger.whole,
            recordings_removed=ledger.removed,
            recordings_damaged=ledger.damaged,
            recordings_unchecked=ledger.unchecked,
            unchecked_because=ledger.unchecked_because,
            damaged=ledger.named(),
        )

    def _without_log(self) -> AuditVerdict:
        lost = max(self._anchors, default=0)
        return AuditVerdict(
            ok=not lost,
            cluster="",
            entries=0,
            segments=0,
            anchors=0,
            head="",
            keys=(),
            first_bad=1 if lost else None,
            problem=f"the log is empty, but an anchor outside has entry {lost}" if lost else "",
        )


async def _feed(verifier: ChainVerifier, text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    for at in range(0, len(lines), _LINES_AT_ONCE):
        await asyncio.to_thread(_feed_lines, verifier, lines[at : at + _LINES_AT_ONCE])


def _feed_lines(verifier: ChainVerifier, lines: list[bytes]) -> None:
    for line in lines:
        verifier.feed(line)


def _lines_up_to(lines: list[bytes], before: int, sequence: int) -> int:
    """How many lines, from the entry after `before` on, are up to an entry and its seal."""
    entries = sequence - before
    for at, line in enumerate(lines):
        if line.startswith(SEAL):
            continue
        if not entries:
            return at
        entries -= 1
    return len(lines)


async def pieces_backwards(
    reader: AuditReader, head: AuditHead, before: int
) -> AsyncIterator[AuditPiece]:
    """The pieces with entries below a sequence, newest first."""
    if before > head.archived.sequence + 1:
        yield AuditPiece(head)
    for name in reversed(await reader.segments(head)):
        if name.first < before:
            yield AuditPiece(head, name)


def _entries_in(text: bytes) -> tuple[AuditEntry, ...]:
    found: list[AuditEntry] = []
    for line in text.splitlines():
        try:
            entry = entry_in(line)
        except BadEntry:
            continue
        if entry is not None:
            found.append(entry)
    return tuple(found)
