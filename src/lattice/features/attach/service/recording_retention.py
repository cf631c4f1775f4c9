"""Removes recordings at the end of their retention: an entry in the audit log, then the chunks.

The retention of logs calls it, before it destroys data keys. So the key of an allocation goes when
neither logs nor recordings of it are left. A step that was interrupted is done again: the record
of a recording is removed last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.audit import AuditAct, AuditEvent, AuditTrail
from lattice.domain.recording_proof import removal_event, removal_text
from lattice.features.attach.service.recordings import Recordings, StoredRecording
from lattice.foundation.recording_store import RecordingStore

_log = logging.getLogger(__name__)

_NO_TENANT = "-"


class RecordingRetention:
    """One for each server."""

    def __init__(
        self, recordings: Recordings, store: RecordingStore, trail: AuditTrail, clock: Clock
    ) -> None:
        self._recordings = recordings
        self._store = store
        self._trail = trail
        self._clock = clock
        self.removed_total = 0

    async def sweep(self, days_of: Callable[[str], int], unfinished: Callable[[str], bool]) -> None:
        """Remove what is older than the retention of its tenant.

        `days_of` is the retention of a tenant; 0: for ever. `unfinished` tells of an allocation.
        A recording is as old as the entry that names it. One that is still open stays.
        """
        now = self._clock.now()
        for stored in await self._recordings.past():
            entry = stored.entry
            days = days_of(entry.tenant or _NO_TENANT)
            if not days or entry.closed is None or unfinished(entry.allocation):
                continue
            if now - entry.closed < timedelta(days=days):
                continue
            try:
                await self._remove(stored, days)
            except LatticeError as error:
                _log.warning("recording %s is not removed: %s", entry.session, error.message)

    async def _remove(self, stored: StoredRecording, days: int) -> None:
        entry = stored.entry
        await self._trail.require(
            AuditEvent(
                event=removal_event(entry.name),
                act=AuditAct.RECORDING_REMOVED,
                allocation=entry.allocation,
                owner=entry.user,
                of_tenant=entry.tenant,
                node=entry.node,
                target=entry.cluster,
                detail=removal_text(entry.session, days),
            )
        )
        chunks = await self._store.remove(entry.path)
        await self._recordings.forget(stored)
        self.removed_total += 1
        _log.info(
            "recording %s of allocation %s removed, %d chunks: older than %d days",
            entry.session, entry.allocation, chunks, days,
        )  # fmt: skip
