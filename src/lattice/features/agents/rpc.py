"""The feature over gRPC: for administrators and nodes that enrol, and for nodes that renew."""

from __future__ import annotations

from typing import Any

from lattice.access.grants import GrantSigner
from lattice.base.errors import UsageError
from lattice.domain.signedtime import is_nonce
from lattice.features.agents.convert import (
    agent_message,
    credentials_message,
    enrolment_message,
    list_message,
)
from lattice.features.agents.service.enrolment import EnrolmentService
from lattice.features.agents.service.trust import TrustedNodes
from lattice.wire.guard import grpc_caller
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import agents_pb2 as pb
from lattice.wire.v1 import agents_pb2_grpc


class AgentRpc(agents_pb2_grpc.AgentServiceServicer):
    """On the people's listener. Thin: the guard has verified the caller."""

    def __init__(self, enrolment: EnrolmentService, trust: TrustedNodes) -> None:
        self._enrolment = enrolment
        self._trust = trust

    async def CreateEnrolment(
        self, request: pb.CreateEnrolmentRequest, context: Any
    ) -> pb.Enrolment:
        made = await self._enrolment.create(grpc_caller(), request.node, request.life_s)
        return enrolment_message(made)

    async def Enrol(self, request: pb.EnrolRequest, context: Any) -> pb.Credentials:
        given = await self._enrolment.enrol(request.token, request.node, request.csr)
        return credentials_message(given)

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Any) -> pb.AgentList:
        return list_message(await self._trust.agents())

    async def RevokeAgent(self, request: pb.RevokeAgentRequest, context: Any) -> pb.Agent:
        return agent_message(await self._trust.revoke(grpc_caller(), request.node, request.reason))

    async def RestoreAgent(self, request: pb.RestoreAgentRequest, context: Any) -> pb.Agent:
        return agent_message(await self._trust.restore(grpc_caller(), request.node))


class AgentIdentityRpc(agents_pb2_grpc.AgentIdentityServiceServicer):
    """On the agents' listener. The node is the one its certificate names, never one it says."""

    def __init__(self, enrolment: EnrolmentService, signer: GrantSigner) -> None:
        self._enrolment = enrolment
        self._signer = signer

    async def TellTime(self, request: pb.TellTimeRequest, context: Any) -> pb.ToldTime:
        if not is_nonce(request.nonce):
            raise UsageError("This is nothing that a helper drew.")
        return pb.ToldTime(signed=self._signer.tell_time(grpc_peer().name, request.nonce))

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.Credentials:
        return credentials_message(await self._enrolment.renew(grpc_peer(), request.csr))
