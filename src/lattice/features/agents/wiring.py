"""Wires the feature: operations and the methods that carry them out."""

from __future__ import annotations

from lattice.base.caller_address import caller_address
from lattice.base.operation import AnyBinding
from lattice.features.agents.operations import (
    CREATE_ENROLMENT,
    ENROL,
    LIST_AGENTS,
    RESTORE_AGENT,
    REVOKE_AGENT,
)
from lattice.features.agents.service.enrolment import EnrolmentService
from lattice.features.agents.service.trust import TrustedNodes
from lattice.foundation.wiring import Wiring


def bindings(enrolment: EnrolmentService, trust: TrustedNodes) -> tuple[AnyBinding, ...]:
    return (
        LIST_AGENTS.to(lambda _actor, _asked: trust.agents()),
        CREATE_ENROLMENT.to(
            lambda actor, asked: enrolment.create(
                actor, asked.node, asked.life_s, again=asked.again, networks=asked.networks
            )
        ),
        ENROL.to(
            lambda _, asked: enrolment.enrol(
                asked.token, asked.node, asked.csr, address=caller_address()
            )
        ),
        REVOKE_AGENT.to(lambda actor, asked: trust.revoke(actor, asked.node, asked.reason)),
        RESTORE_AGENT.to(
            lambda actor, asked: trust.restore(actor, asked.node, repeated=asked.repeated)
        ),
    )


def wire(enrolment: EnrolmentService, trust: TrustedNodes) -> Wiring:
    return Wiring(bindings=bindings(enrolment, trust))
