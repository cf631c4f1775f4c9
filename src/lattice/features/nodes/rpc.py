"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.base.choices import chosen
from lattice.domain.node import NodeState
from lattice.features.nodes.convert import card_message, list_message
from lattice.features.nodes.service import NodeService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import nodes_pb2 as pb
from lattice.wire.v1 import nodes_pb2_grpc


class NodeRpc(nodes_pb2_grpc.NodeServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: NodeService) -> None:
        self._service = service

    async def ListNodes(self, request: pb.ListNodesRequest, context: Any) -> pb.NodeList:
        states = chosen(NodeState, request.states, "node state")
        return list_message(await self._service.nodes(states, request.partition))

    async def GetNode(self, request: pb.GetNodeRequest, context: Any) -> pb.NodeCard:
        return card_message(await self._service.node(grpc_caller(), request.name))
