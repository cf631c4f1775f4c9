"""An audit log on agreed state in memory, or on any other store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.signatures import SigningKey
from lattice.domain.audit import AuditAct, AuditEvent
from lattice.domain.state import StateStore
from lattice.features.audit.service.chain import AuditChain
from lattice.features.audit.service.log import AuditLog

CLUSTER = "c0ffee"


@dataclass(frozen=True, slots=True)
class AuditReplica:
    """The log of one server."""

    chain: AuditChain
    log: AuditLog


async def the_cluster() -> str:
    return CLUSTER


def audit_log(state: StateStore, clock: Clock, signer: GrantSigner) -> AuditLog:
    chain = AuditChain(state, clock, signer.sign_audit, signer.public_keys, the_cluster)
    return AuditLog(chain, patience_s=2.0)


def audit_replica(
    state: StateStore, clock: Clock, key: SigningKey, also: tuple[bytes, ...] = ()
) -> AuditReplica:
    log = audit_log(state, clock, GrantSigner(key, clock, also))
    return AuditReplica(log.chain, log)


def attach(event: str, user: str = "alice", **more: Any) -> AuditEvent:
    return replace(
        AuditEvent(
            event=event,
            act=AuditAct.ATTACH_START,
            user=user,
            allocation="42@1772366400",
            owner=user,
            node="n1",
            of_tenant="physics",
        ),
        **more,
    )
