"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.features.submit.operations import CANCEL_ALLOCATION, SUBMIT_ALLOCATION
from lattice.features.submit.section import UenvSection
from lattice.features.submit.service.submissions import SubmitService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def wire(foundation: Foundation, uenv: UenvSection, *, keys: bool = True) -> Wiring:
    """The bindings of the feature.

    Without `keys` the state store does not last, so it can't hold idempotency keys.
    """
    service = SubmitService(
        foundation.scheduler,
        foundation.gate,
        foundation.state if keys else None,
        foundation.views,
        foundation.clock,
        limits=foundation.limits,
        journal=foundation.journal,
        claims=foundation.claims,
        plugin=uenv.plugin,
    )
    return Wiring(
        bindings=(
            SUBMIT_ALLOCATION.to(
                lambda actor, asked: service.submit(
                    actor,
                    asked,
                    asked.idempotency_key,
                    optional=asked.key_optional,
                    repeated=asked.repeated,
                )
            ),
            CANCEL_ALLOCATION.to(lambda actor, asked: service.cancel(actor, asked.id)),
        )
    )
