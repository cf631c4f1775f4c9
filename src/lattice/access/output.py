"""The only access to a job's output and measurements: find, record, check again.

A read by anyone but the owner is recorded for the owner before anything is answered. If that fails,
nothing is answered. A long read is checked again every few seconds, so it ends soon after the right
to it. The owner's reads need neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder, Found
from lattice.access.permission import Permission
from lattice.base.clock import Clock
from lattice.domain.sharing import ReadKind, ReadNotes, Standing

CHECK_EVERY_S = 3.0
"""How long a right may still be used after its end."""
_NOTE_EVERY_S = 600.0


class OutputAccess:
    """For every feature that shows a job's output or its measurements."""

    def __init__(self, finder: AllocationFinder, notes: ReadNotes, clock: Clock) -> None:
        self._finder = finder
        self._notes = notes
        self._clock = clock

    async def find(self, actor: Actor, name: str) -> Found:
        """The allocation, if the caller may read its output. Raises as the finder does."""
        return await self._finder.find(actor, Permission.READ_OUTPUT, name)

    def find_live(self, actor: Actor, name: str) -> Found | None:
        """The same at once, from the last reading; None if only `find` can decide."""
        return self._finder.find_live(actor, Permission.READ_OUTPUT, name)

    async def enter(self, actor: Actor, found: Found, kind: ReadKind) -> AccessSession:
        """Record the read before anything is shown. Raises `NotFound` and `Unavailable`."""
        if found.standing is not Standing.OWNER:
            await self._finder.confirm(actor, found)
            reader = actor.user or actor.sub
            await self._notes.note(reader, found.standing, found.allocation, kind)
        now_s = self._clock.monotonic()
        return AccessSession(self._finder, self._notes, self._clock, actor, found, kind, now_s)


@dataclass(slots=True)
class AccessSession:
    """One read by one caller, from its first answer to its last."""

    _finder: AllocationFinder
    _notes: ReadNotes
    _clock: Clock
    _actor: Actor
    _found: Found
    _kind: ReadKind
    _noted_s: float

    @property
    def is_owners(self) -> bool:
        """True if it needs no further checks."""
        return self._found.standing is Standing.OWNER

    async def check(self) -> None:
        """Raise if it may not continue: `NotFound` once the right has ended, or `Unavailable`."""
        if self.is_owners:
            return
        self._finder.check(self._actor, Permission.READ_OUTPUT, self._found.allocation)
        if self._clock.monotonic() - self._noted_s >= _NOTE_EVERY_S:
            reader = self._actor.user or self._actor.sub
            await self._notes.note(
                reader, self._found.standing, self._found.allocation, self._kind, goes_on=True
            )
            self._noted_s = self._clock.monotonic()
