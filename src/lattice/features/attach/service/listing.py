"""The caller's own sessions, open and past."""

from __future__ import annotations

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.permission import Permission
from lattice.features.attach.model import AttachSessions
from lattice.features.attach.service.records import SessionRecords


class AttachListing:
    """Answers `lattice sessions`."""

    def __init__(self, finder: AllocationFinder, records: SessionRecords) -> None:
        self._finder = finder
        self._records = records

    async def of(self, actor: Actor, *, name: str = "", only_open: bool = False) -> AttachSessions:
        """Newest first; with a name those of that allocation alone. Raises as the finder does."""
        allocation = ""
        if name:
            found = await self._finder.find(actor, Permission.VIEW_ALLOCATIONS, name)
            allocation = found.allocation.ref
        sessions, more = await self._records.of(
            actor.user, allocation=allocation, only_open=only_open
        )
        return AttachSessions(sessions=sessions, more=more)
