"""Records acts on sensitive work in the audit log before they happen."""

from __future__ import annotations

import uuid

from lattice.access.actor import Actor
from lattice.base.caller_address import caller_address
from lattice.domain.allocation import Allocation
from lattice.domain.audit import AuditAct, AuditEvent, AuditTrail, NoTrail
from lattice.domain.sensitive import SensitiveWork


class SensitiveActs:
    """Each act waits until its entry is committed. Acts on other work pass at once."""

    def __init__(
        self, sensitive: SensitiveWork | None = None, trail: AuditTrail | None = None
    ) -> None:
        self._sensitive = sensitive or SensitiveWork()
        self._trail = trail or NoTrail()

    async def require(
        self, actor: Actor, act: AuditAct, allocation: Allocation, detail: str, *, node: str = ""
    ) -> bool:
        """True once it is recorded, False if the allocation is not sensitive.

        Raises `SensitiveAuditRequired` if it can't be recorded: then the act must not happen.
        """
        if not self._sensitive.covers(allocation):
            return False
        await self._trail.require(
            AuditEvent(
                event=uuid.uuid4().hex,
                act=act,
                sub=actor.sub,
                user=actor.user,
                role=actor.role.value,
                tenant=actor.tenant,
                allocation=allocation.ref,
                owner=allocation.user,
                of_tenant=allocation.tenant or "",
                node=node,
                address=caller_address(),
                detail=detail,
            )
        )
        return True
