"""Wires the feature: its service, and the loop that keeps claims and reservations together."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.reservation import Reservations
from lattice.features.claims.operations import CLAIM_NODES, LIST_CLAIMS, RELEASE_NODES
from lattice.features.claims.service.claims import ClaimService
from lattice.features.claims.service.ledger import ClaimLedger
from lattice.features.claims.service.reconciliation import ClaimReconciler
from lattice.features.claims.service.transitions import ClaimTransitions
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: ClaimService) -> tuple[AnyBinding, ...]:
    return (
        LIST_CLAIMS.to(lambda actor, _: service.claims(actor)),
        CLAIM_NODES.to(service.claim),
        RELEASE_NODES.to(service.release),
    )


def wire(foundation: Foundation, reservations: Reservations) -> Wiring:
    """Return the feature's part of the server."""
    ledger = ClaimLedger(foundation.signed_state)
    transitions = ClaimTransitions(ledger, reservations, foundation.audit, foundation.clock)
    service = ClaimService(
        ledger,
        transitions,
        foundation.audit,
        foundation.scheduler,
        foundation.sensitive,
        foundation.clock,
        foundation.journal,
    )

    def is_needed() -> bool:
        return foundation.sensitive.is_possible or bool(foundation.claims.claims().held)

    reconciler = ClaimReconciler(
        ledger, transitions, reservations, foundation.state, foundation.clock, is_needed
    )
    counts = reconciler.counts
    foundation.own_metrics.watch(
        lambda: {
            "claims_finished_total": float(counts.finished_total),
            "claims_reserved_again_total": float(counts.remade_total),
            "claims_strays_removed_total": float(counts.removed_total),
        }
    )
    foundation.own_metrics.show(lambda: {"claims_unreserved": float(counts.unreserved)})
    loop = Loop("claims", reconciler.run, OnFailure.RESTART)
    return Wiring(bindings=bindings(service), loops=(loop,))
