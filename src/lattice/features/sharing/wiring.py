"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.base.reload import Reload
from lattice.features.sharing.model import ShareTerms
from lattice.features.sharing.operations import LIST_SHARES, SHARE_ALLOCATION, UNSHARE_ALLOCATION
from lattice.features.sharing.section import SharingSection
from lattice.features.sharing.service.sharing import SharedAllocations, SharingService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: SharingService) -> tuple[AnyBinding, ...]:
    return (
        LIST_SHARES.to(lambda actor, asked: service.sharing(actor, asked.id)),
        SHARE_ALLOCATION.to(
            lambda actor, asked: service.share(actor, asked.id, asked.user, asked.duration_s)
        ),
        UNSHARE_ALLOCATION.to(
            lambda actor, asked: service.unshare(
                actor, asked.id, asked.user, repeated=asked.repeated
            )
        ),
    )


def wire(foundation: Foundation, shares: SharedAllocations, terms: ShareTerms) -> Wiring:
    service = SharingService(
        foundation.scheduler,
        foundation.finder,
        shares,
        foundation.reads,
        foundation.clock,
        terms,
        foundation.journal,
    )

    def reload(section: SharingSection) -> None:
        service.terms = section.terms

    return Wiring(bindings=bindings(service), reloads=(Reload("sharing", reload),))
