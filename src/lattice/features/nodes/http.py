"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request

from lattice.access.actor import Actor
from lattice.domain.node import NodeState
from lattice.features.nodes.model import NodeCard, NodeList
from lattice.features.nodes.service import NodeService
from lattice.wire.guard import GuardedRoutes


def offer(routes: GuardedRoutes[Actor], service: NodeService) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.NodeService/"

    @routes.get("/nodes", rpc=rpc + "ListNodes", response_model=NodeList)
    async def list_nodes(
        states: Annotated[list[NodeState], Query(alias="state", max_length=8)] = [],
        partition: Annotated[str, Query(max_length=256)] = "",
    ) -> NodeList:
        return await service.nodes(frozenset(states), partition)

    @routes.get("/nodes/{name}", rpc=rpc + "GetNode", response_model=NodeCard)
    async def get_node(request: Request, name: Annotated[str, Path(max_length=256)]) -> NodeCard:
        return await service.node(routes.caller(request), name)
