"""The only access to a job's output and measurements: find, record, check again.

A read by anyone but the owner is recorded for the owner before anything is answered. If that fails,
nothing is answered. A long read is checked again every few seconds, so it ends soon after the right
to it. The owner's reads need neither.

Of sensitive work every read is in the audit log first, the owner's too.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder, Found
from lattice.access.permission import Permission
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.clock import Clock
from lattice.domain.allocation import Allocation
from lattice.domain.audit import AuditAct
from lattice.domain.sharing import ReadKind, ReadNotes, Standing

CHECK_EVERY_S = 3.0
"""How long a right may still be used after its end."""
_NOTE_EVERY_S = 600.0
_ACTS = {
    Permission.READ_OUTPUT: AuditAct.LOG_READ,
    Permission.READ_MEASUREMENTS: AuditAct.METRIC_READ,
}


class OutputAccess:
    """For every feature that shows a job's output, or its measurements."""

    def __init__(
        self,
        finder: AllocationFinder,
        notes: ReadNotes,
        clock: Clock,
        permission: Permission = Permission.READ_OUTPUT,
        acts: SensitiveActs | None = None,
    ) -> None:
        """`permission` is `READ_OUTPUT` or `READ_MEASUREMENTS`."""
        self._finder = finder
        self._notes = notes
        self._clock = clock
        self._permission = permission
        self._acts = acts or SensitiveActs()

    async def find(self, actor: Actor, name: str) -> Found:
        """The allocation, if the caller may read its output. Raises as the finder does."""
        return await self._finder.find(actor, self._permission, name)

    def find_live(self, actor: Actor, name: str) -> Found | None:
        """The same at once, from the last reading; None if only `find` can decide."""
        return self._finder.find_live(actor, self._permission, name)

    async def enter(self, actor: Actor, found: Found, kind: ReadKind) -> AccessSession:
        """Record the read before anything is shown. Raises `NotFound` and `Unavailable`."""
        audited = await self.audit(actor, found.allocation, kind.value)
        session = AccessSession(
            self._finder,
            self._notes,
            self._clock,
            self._permission,
            actor,
            found,
            kind,
            self._clock.monotonic(),
            audited,
        )
        if not session.is_owners:
            await self._finder.confirm(actor, found)
            await session.note(goes_on=False)
        return session

    async def audit(self, actor: Actor, allocation: Allocation, detail: str) -> bool:
        """Record a read of sensitive work. True if it is; raises `SensitiveAuditRequired`."""
        act = _ACTS[self._permission]
        return await self._acts.require(actor, act, allocation, detail)


@dataclass(slots=True)
class AccessSession:
    """One read by one caller, from its first answer to its last."""

    _finder: AllocationFinder
    _notes: ReadNotes
    _clock: Clock
    _permission: Permission
    _actor: Actor
    _found: Found
    _kind: ReadKind
    _noted_s: float
    _audited: bool
    """Whether it is in the audit log already."""

    @property
    def is_owners(self) -> bool:
        """True if it needs no further checks."""
        return self._found.standing is Standing.OWNER

    async def check(self) -> None:
        """Raise if it may not continue: `NotFound` once the right has ended, or `Unavailable`."""
        if self.is_owners:
            return
        self._finder.check(self._actor, self._permission, self._found.allocation)
        if self._clock.monotonic() - self._noted_s >= _NOTE_EVERY_S:
            await self.note(goes_on=True)
            self._noted_s = self._clock.monotonic()

    async def note(self, *, goes_on: bool) -> None:
        """Record it for the owner. Raises `Unavailable`."""
        reader, found = self._actor.user or self._actor.sub, self._found
        await self._notes.note(
            reader,
            found.standing,
            found.allocation,
            self._kind,
            goes_on=goes_on,
            audited=self._audited,
        )
