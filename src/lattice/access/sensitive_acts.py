"""Records acts on sensitive work in the audit log: before they happen, or as refused."""

from __future__ import annotations

import uuid
from collections import OrderedDict

from lattice.access.actor import Actor
from lattice.access.permission import Permission
from lattice.base.caller_address import caller_address
from lattice.domain.allocation import Allocation
from lattice.domain.audit import AuditAct, AuditEvent, AuditOutcome, AuditTrail, NoTrail
from lattice.domain.sensitive import SensitiveWork

_REFUSED = {
    Permission.READ_OUTPUT: AuditAct.LOG_READ,
    Permission.READ_MEASUREMENTS: AuditAct.METRIC_READ,
    Permission.ATTACH_ALLOCATION: AuditAct.ATTACH_START,
    Permission.CANCEL_ALLOCATION: AuditAct.CANCEL,
    Permission.SHARE_ALLOCATION: AuditAct.SHARE,
    Permission.SWITCH_TELEMETRY: AuditAct.MODE_SWITCH,
}
"""What a caller without the right to it was about to do."""
_REPEATS_S = 60.0
"""How long further refusals of the same are left out, so that nobody can fill the log."""
_MOST_REMEMBERED = 4096


class SensitiveActs:
    """Each act waits until its entry is committed. Acts on other work pass at once."""

    def __init__(
        self, sensitive: SensitiveWork | None = None, trail: AuditTrail | None = None
    ) -> None:
        self._sensitive = sensitive or SensitiveWork()
        self._trail = trail or NoTrail()
        self._refused: OrderedDict[tuple[str, str, Permission, str], float] = OrderedDict()

    async def require(
        self, actor: Actor, act: AuditAct, allocation: Allocation, detail: str, *, node: str = ""
    ) -> bool:
        """True once it is recorded, False if the allocation is not sensitive.

        Raises `SensitiveAuditRequired` if it can't be recorded: then the act must not happen.
        """
        if not self._sensitive.covers(allocation):
            return False
        await self._trail.require(act_event(actor, act, allocation, detail, node=node))
        return True

    def not_done(
        self, actor: Actor, act: AuditAct, allocation: Allocation, detail: str, *, node: str = ""
    ) -> None:
        """Record soon that an act of which there is an entry was refused after it."""
        outcome = AuditOutcome.REFUSED
        self._trail.note(act_event(actor, act, allocation, detail, node=node, outcome=outcome))

    def refused(
        self,
        actor: Actor,
        permission: Permission,
        allocation: Allocation,
        detail: str,
        now_s: float,
    ) -> None:
        """Record soon that somebody who may know of sensitive work was refused what is in it."""
        act = _REFUSED.get(permission)
        if act is None or self._is_repeated(actor, permission, allocation, now_s):
            return
        self._trail.note(act_event(actor, act, allocation, detail, outcome=AuditOutcome.REFUSED))

    def _is_repeated(
        self, actor: Actor, permission: Permission, allocation: Allocation, now_s: float
    ) -> bool:
        key = (actor.sub, actor.role.value, permission, allocation.ref)
        before_s = self._refused.get(key)
        if before_s is not None and now_s - before_s < _REPEATS_S:
            return True
        self._refused[key] = now_s
        self._refused.move_to_end(key)
        if len(self._refused) > _MOST_REMEMBERED:
            self._refused.popitem(last=False)
        return False


def act_event(
    actor: Actor,
    act: AuditAct,
    allocation: Allocation,
    detail: str,
    *,
    node: str = "",
    outcome: AuditOutcome = AuditOutcome.DONE,
) -> AuditEvent:
    """An event of this caller about an allocation."""
    return AuditEvent(
        event=uuid.uuid4().hex,
        act=act,
        outcome=outcome,
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
