"""Which acts of the journal become entries of the audit log. Pure."""

from __future__ import annotations

import uuid

from lattice.access.actor import Actor
from lattice.domain.audit import AuditAct, AuditEvent, AuditOutcome

_ALLOCATION = {
    "attach": AuditAct.ATTACH_START,
    "attach end": AuditAct.ATTACH_END,
    "share": AuditAct.SHARE,
    "unshare": AuditAct.UNSHARE,
    "telemetry": AuditAct.MODE_SWITCH,
    "cancel": AuditAct.CANCEL,
    "submit": AuditAct.SUBMIT,
    "list output": AuditAct.LOG_READ,
    "read output": AuditAct.LOG_READ,
    "follow output": AuditAct.LOG_READ,
    "download output": AuditAct.LOG_READ,
    "read measurements": AuditAct.METRIC_READ,
    "follow measurements": AuditAct.METRIC_READ,
}
_NODE = {
    "drain": AuditAct.DRAIN,
    "undrain": AuditAct.UNDRAIN,
    "disable": AuditAct.DISABLE,
    "enable": AuditAct.ENABLE,
    "enrol": AuditAct.ENROL,
    "revoke": AuditAct.REVOKE,
    "restore node": AuditAct.RESTORE_NODE,
}
_TENANT = {
    "create tenant": AuditAct.TENANT_CREATE,
    "update tenant": AuditAct.TENANT_UPDATE,
}
_OTHER = {
    "lock": AuditAct.LOCK,
    "unlock": AuditAct.UNLOCK,
    "backup": AuditAct.BACKUP,
    "restore": AuditAct.RESTORE,
}
AUDITED = {**_ALLOCATION, **_NODE, **_TENANT, **_OTHER}
_OUTCOMES = {
    " refused": AuditOutcome.REFUSED,
    " failed": AuditOutcome.FAILED,
    " held back": AuditOutcome.REFUSED,
}


def audit_event(
    act: str,
    target: str,
    sub: str,
    detail: str,
    *,
    actor: Actor | None = None,
    address: str = "",
    owner: str = "",
    tenant: str = "",
) -> AuditEvent | None:
    """The event for an act; None if it is not audited. `actor` is the caller, if it is known."""
    outcome = AuditOutcome.DONE
    for ending, found in _OUTCOMES.items():
        if act.endswith(ending):
            act, outcome = act.removesuffix(ending), found
    if act not in AUDITED:
        return None
    known = actor if actor is not None and sub in {actor.sub, actor.user} else Actor(sub=sub)
    return AuditEvent(
        event=uuid.uuid4().hex,
        act=AUDITED[act],
        outcome=outcome,
        sub=known.sub,
        user=known.user,
        role=known.role.value if known is actor else "",
        tenant=known.tenant,
        allocation=target if act in _ALLOCATION else "",
        owner=owner,
        node=target if act in _NODE else "",
        of_tenant=target if act in _TENANT else tenant,
        target=target if act in _OTHER else "",
        address=address,
        detail=detail,
    )
