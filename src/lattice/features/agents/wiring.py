"""Wires the feature: operations and the methods that carry them out."""

from __future__ import annotations

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.base.caller_address import caller_address
from lattice.base.operation import AnyBinding
from lattice.features.agents.model import Agent, Enrolment
from lattice.features.agents.operations import (
    CREATE_ENROLMENT,
    ENROL,
    LIST_AGENTS,
    RESTORE_AGENT,
    REVOKE_AGENT,
    EnrolmentOrder,
    RestoreRequest,
    RevocationOrder,
)
from lattice.features.agents.service.enrolment import EnrolmentService
from lattice.features.agents.service.trust import TrustedNodes
from lattice.foundation.wiring import Wiring


def bindings(
    enrolment: EnrolmentService, trust: TrustedNodes, journal: ActJournal
) -> tuple[AnyBinding, ...]:
    async def create(actor: Actor, asked: EnrolmentOrder) -> Enrolment:
        made = await enrolment.create(
            actor, asked.node, asked.life_s, again=asked.again, networks=asked.networks
        )
        journal.acted("enrol", made.node, actor.sub, f"until {made.expires:%Y-%m-%d %H:%M} UTC")
        return made

    async def revoke(actor: Actor, asked: RevocationOrder) -> Agent:
        revoked = await trust.revoke(actor, asked.node, asked.reason)
        journal.acted("revoke", asked.node, actor.sub, asked.reason)
        return revoked

    async def restore(actor: Actor, asked: RestoreRequest) -> Agent:
        restored = await trust.restore(actor, asked.node, repeated=asked.repeated)
        journal.acted("restore node", asked.node, actor.sub, "")
        return restored

    return (
        LIST_AGENTS.to(lambda _actor, _asked: trust.agents()),
        CREATE_ENROLMENT.to(create),
        ENROL.to(
            lambda _, asked: enrolment.enrol(
                asked.token, asked.node, asked.csr, address=caller_address()
            )
        ),
        REVOKE_AGENT.to(revoke),
        RESTORE_AGENT.to(restore),
    )


def wire(enrolment: EnrolmentService, trust: TrustedNodes, journal: ActJournal) -> Wiring:
    return Wiring(bindings=bindings(enrolment, trust, journal))
