"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.base.choices import chosen
from lattice.domain.node import NodeState
from lattice.domain.operation import NodeAct
from lattice.features.nodes.convert import acts_message, card_message, list_message
from lattice.features.nodes.service.nodes import NodeOperations, NodeService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import nodes_pb2 as pb
from lattice.wire.v1 import nodes_pb2_grpc


class NodeRpc(nodes_pb2_grpc.NodeServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: NodeService, operations: NodeOperations) -> None:
        self._service = service
        self._operations = operations

    async def ListNodes(self, request: pb.ListNodesRequest, context: Any) -> pb.NodeList:
        states = chosen(NodeState, request.states, "node state")
        return list_message(await self._service.nodes(states, request.partition))

    async def GetNode(self, request: pb.GetNodeRequest, context: Any) -> pb.NodeCard:
        return card_message(await self._service.node(grpc_caller(), request.name))

    async def DrainNode(self, request: pb.OperateNodeRequest, context: Any) -> pb.NodeActs:
        return await self._operate(NodeAct.DRAIN, request)

    async def UndrainNode(self, request: pb.OperateNodeRequest, context: Any) -> pb.NodeActs:
        return await self._operate(NodeAct.UNDRAIN, request)

    async def DisableNode(self, request: pb.OperateNodeRequest, context: Any) -> pb.NodeActs:
        return await self._operate(NodeAct.DISABLE, request)

    async def EnableNode(self, request: pb.OperateNodeRequest, context: Any) -> pb.NodeActs:
        return await self._operate(NodeAct.ENABLE, request)

    async def _operate(self, act: NodeAct, request: pb.OperateNodeRequest) -> pb.NodeActs:
        return acts_message(
            await self._operations.operate(grpc_caller(), act, request.name, request.reason)
        )
