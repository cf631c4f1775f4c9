"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.operations import GET_AUTH_DISCOVERY, WHO_AM_I
from lattice.features.identity.service import IdentityService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: IdentityService) -> tuple[AnyBinding, ...]:
    """Bind the operations to the service."""
    return (
        GET_AUTH_DISCOVERY.to(lambda _actor, _asked: service.discovery()),
        WHO_AM_I.to(lambda actor, _: service.whoami(actor)),
    )


def wire(foundation: Foundation, discovery: AuthDiscovery) -> Wiring:
    """Return the feature's part of the server."""
    return Wiring(bindings=bindings(IdentityService(foundation.scheduler, discovery)))
