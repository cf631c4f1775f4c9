"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.operations import GET_AUTH_DISCOVERY, WHO_AM_I
from lattice.features.identity.service import IdentityService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def wire(foundation: Foundation, discovery: AuthDiscovery) -> Wiring:
    """Return the feature's part of the server."""
    service = IdentityService(foundation.scheduler, discovery)
    return Wiring(
        bindings=(
            GET_AUTH_DISCOVERY.to(lambda _actor, _asked: service.discovery()),
            WHO_AM_I.to(lambda actor, _: service.whoami(actor)),
        )
    )
