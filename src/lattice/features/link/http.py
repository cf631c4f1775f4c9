"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request

from lattice.access.actor import Actor
from lattice.features.link.model import MOST_PINGS, NodeReach
from lattice.features.link.service.probe import ProbeService
from lattice.wire.guard import GuardedRoutes


def offer(routes: GuardedRoutes[Actor], service: ProbeService) -> None:
    """Put the feature's routes among the server's."""

    @routes.get("/nodes/{name}/ping", rpc="lattice.v1.LinkProbe/PingNode", response_model=NodeReach)
    async def ping_node(
        request: Request,
        name: Annotated[str, Path(max_length=63)],
        count: Annotated[int, Query(ge=1, le=MOST_PINGS)] = 10,
    ) -> NodeReach:
        return await service.ping(routes.caller(request), name, count)
