"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

from lattice.base.call import Call
from lattice.features.identity.model import AuthDiscovery, Identity


def auth_discovery() -> Call[AuthDiscovery]:
    """Where and as which client to sign in; needs no token."""
    return Call("GET", "/api/v1/auth/discovery", AuthDiscovery)


def whoami() -> Call[Identity]:
    """Who the server takes the caller for."""
    return Call("GET", "/v1/auth/whoami", Identity)
