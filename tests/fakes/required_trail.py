"""An audit log that only records sensitive acts, and that can be away."""

from __future__ import annotations

from lattice.base.clock import Clock, SystemClock
from lattice.domain.audit import (
    AuditEntry,
    AuditEvent,
    AuditOutcome,
    SensitiveAuditRequired,
    entry_of,
)


class RequiredTrail:
    """The ports `AuditTrail` and `AuditEntries`. What need not be recorded first is in `noted`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.is_away = False
        self.entries: list[AuditEntry] = []
        self._clock = clock or SystemClock()
        self.events: list[AuditEvent] = []
        self.noted: list[AuditEvent] = []

    @property
    def refused(self) -> list[AuditEvent]:
        return [each for each in self.noted if each.outcome is AuditOutcome.REFUSED]

    async def require(self, event: AuditEvent) -> AuditEntry:
        if self.is_away:
            raise SensitiveAuditRequired("etcd does not answer")
        self.events.append(event)
        made = entry_of(event, len(self.entries) + 1, self._clock.now())
        self.entries.append(made)
        return made

    async def entry(self, sequence: int) -> AuditEntry | None:
        return self.entries[sequence - 1] if 0 < sequence <= len(self.entries) else None

    def note(self, event: AuditEvent) -> None:
        self.noted.append(event)
