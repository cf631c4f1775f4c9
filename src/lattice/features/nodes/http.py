"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request

from lattice.access.actor import Actor
from lattice.domain.node import NodeState
from lattice.domain.operation import NodeAct
from lattice.features.nodes.model import Because, NodeActs, NodeCard, NodeList
from lattice.features.nodes.service.nodes import NodeOperations, NodeService
from lattice.wire.guard import GuardedRoutes

_LONGEST_SET = 16 * 1024
_RPC = "lattice.v1.NodeService/"


def offer(routes: GuardedRoutes[Actor], service: NodeService, operations: NodeOperations) -> None:
    """Put the feature's routes among the server's."""

    @routes.get("/nodes", rpc=_RPC + "ListNodes", response_model=NodeList)
    async def list_nodes(
        states: Annotated[list[NodeState], Query(alias="state", max_length=8)] = [],
        partition: Annotated[str, Query(max_length=256)] = "",
    ) -> NodeList:
        return await service.nodes(frozenset(states), partition)

    @routes.get("/nodes/{name}", rpc=_RPC + "GetNode", response_model=NodeCard)
    async def get_node(request: Request, name: Annotated[str, Path(max_length=256)]) -> NodeCard:
        return await service.node(routes.caller(request), name)

    for act in NodeAct:
        _offer_act(routes, operations, act)


def _offer_act(routes: GuardedRoutes[Actor], operations: NodeOperations, act: NodeAct) -> None:
    rpc = f"{_RPC}{act.value.capitalize()}Node"

    @routes.post(f"/nodes/{{name}}/{act.value}", rpc=rpc, body=Because, response_model=NodeActs)
    async def operate(
        request: Request, name: Annotated[str, Path(max_length=_LONGEST_SET)]
    ) -> NodeActs:
        because = await routes.body(request, Because)
        return await operations.operate(routes.caller(request), act, name, because.reason)
