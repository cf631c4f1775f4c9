"""Checks recordings of terminals against the entries that name them. It has no key.

So it proves that a recording is whole, and sees nothing of its content. Chunks are read as a
stream. Once the bucket does not answer, all further recordings count as not checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.audit import AuditEntry
from lattice.domain.objects import BadKeyPart
from lattice.domain.recording import BadRecording, RecordingVerifier
from lattice.domain.recording_proof import (
    RecordedSession,
    RecordingLedger,
    entries_about_recordings,
    recorded_session,
    recording_removal,
)
from lattice.foundation.recording_store import RecordingStore

PATIENCE_S = 240.0
"""What is left after this time is not checked: a proxy of the site may wait for five minutes."""
_SMALL_BYTES = 64 * 1024
_LATE = "it would take too long: name a later day with --since"


class _TooLate(Exception):
    """The time for recordings is over."""


class RecordingCheck:
    """One run. Give it the lines of the log after they are verified."""

    def __init__(
        self,
        store: RecordingStore | None,
        clock: Clock,
        shows: Callable[[AuditEntry], bool],
        since: datetime | None = None,
    ) -> None:
        """`shows` is true for entries that the caller may see.

        `store` is None if the server has no bucket of sensitive work.
        """
        self.ledger = RecordingLedger()
        self._store = store
        self._clock = clock
        self._shows = shows
        self._since = since
        self._until_s = clock.monotonic() + PATIENCE_S
        self._stopped = "" if store is not None else "this server has no bucket of sensitive work"

    async def take(self, text: bytes) -> None:
        """Check the recordings that these lines name."""
        entries = await asyncio.to_thread(
            lambda: list(entries_about_recordings(text.splitlines(keepends=True)))
        )
        for entry in entries:
            recorded = recorded_session(entry)
            if recorded is not None and self._is_asked(entry):
                await self._check(recorded)
        self.take_removals(entries)

    def take_removals(self, entries: list[AuditEntry]) -> None:
        """Add the removals among these entries."""
        for entry in entries:
            removal = recording_removal(entry)
            if removal is not None:
                self.ledger.remove(removal)

    def _is_asked(self, entry: AuditEntry) -> bool:
        return self._shows(entry) and (self._since is None or entry.time >= self._since)

    async def _check(self, recorded: RecordedSession) -> None:
        if self._stopped:
            self.ledger.add_unchecked(self._stopped)
            return
        try:
            self.ledger.add(recorded, await self._problem(recorded))
        except Unavailable as problem:
            self._stopped = problem.message
            self.ledger.add_unchecked(self._stopped)
        except _TooLate:
            self._stopped = _LATE
            self.ledger.add_unchecked(self._stopped)

    async def _problem(self, recorded: RecordedSession) -> BadRecording | None:
        assert self._store is not None
        verifier = RecordingVerifier(recorded.name, recorded.anchor)
        try:
            chunks = self._store.first_chunks(recorded.path, recorded.anchor.chunks)
            async for number, chunk in chunks:
                if self._clock.monotonic() > self._until_s:
                    raise _TooLate
                # Hashing a large chunk would hold up others.
                if len(chunk) > _SMALL_BYTES:
                    await asyncio.to_thread(verifier.take, number, chunk)
                else:
                    verifier.take(number, chunk)
            verifier.finish()
        except BadRecording as problem:
            return problem
        except BadKeyPart:
            return BadRecording(0, "its entry names no place in the bucket")
        return None
