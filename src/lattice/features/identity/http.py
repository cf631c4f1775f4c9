"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from fastapi import Request, Response

from lattice.access.actor import Actor
from lattice.features.identity.model import AuthDiscovery, Identity
from lattice.features.identity.service import IdentityService
from lattice.wire.guard import GuardedRoutes


@lru_cache(maxsize=8)
def _written(discovery: AuthDiscovery) -> bytes:
    # Public, so a stranger may ask without end.
    return msgspec.json.encode(discovery)


def offer(routes: GuardedRoutes[Actor], service: IdentityService) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.IdentityService/"

    @routes.get("/auth/discovery", rpc=rpc + "GetAuthDiscovery", response_model=AuthDiscovery)
    async def auth_discovery() -> Response:
        return Response(_written(await service.discovery()), media_type="application/json")

    @routes.get("/auth/whoami", rpc=rpc + "WhoAmI", response_model=Identity)
    async def whoami(request: Request) -> Identity:
        return await service.whoami(routes.caller(request))
