"""An audit log that only records sensitive acts, and that can be away."""

from __future__ import annotations

from datetime import UTC, datetime

from lattice.domain.audit import (
    AuditEntry,
    AuditEvent,
    AuditOutcome,
    SensitiveAuditRequired,
    entry_of,
)


class RequiredTrail:
    """The port `AuditTrail`. What need not be recorded first is in `noted`."""

    def __init__(self) -> None:
        self.is_away = False
        self.events: list[AuditEvent] = []
        self.noted: list[AuditEvent] = []

    @property
    def refused(self) -> list[AuditEvent]:
        return [each for each in self.noted if each.outcome is AuditOutcome.REFUSED]

    async def require(self, event: AuditEvent) -> AuditEntry:
        if self.is_away:
            raise SensitiveAuditRequired("etcd does not answer")
        self.events.append(event)
        return entry_of(event, len(self.events), datetime.now(UTC))

    def note(self, event: AuditEvent) -> None:
        self.noted.append(event)
