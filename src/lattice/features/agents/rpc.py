"""gRPC for nodes: certificate renewal, whom to trust, and the server's time."""

from __future__ import annotations

from typing import Any

from lattice.access.grants import GrantSigner
from lattice.base.errors import UsageError
from lattice.domain.signedtime import is_nonce
from lattice.features.agents.service.enrolment import EnrolmentService
from lattice.wire.convert import message_of
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import agents_pb2 as pb
from lattice.wire.v1 import agents_pb2_grpc


class AgentIdentityRpc(agents_pb2_grpc.AgentIdentityServiceServicer):
    """Runs on the agents' listener. The certificate alone names the node."""

    def __init__(self, enrolment: EnrolmentService, signer: GrantSigner) -> None:
        self._enrolment = enrolment
        self._signer = signer

    async def TellTime(self, request: pb.TellTimeRequest, context: Any) -> pb.ToldTime:
        if not is_nonce(request.nonce):
            raise UsageError("This is nothing that a helper drew.")
        return pb.ToldTime(signed=self._signer.sign_time(grpc_peer().name, request.nonce))

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Any
    ) -> pb.SignedStatement:
        if not is_nonce(request.nonce):
            raise UsageError("This is nothing that an agent drew.")
        statement, signature = self._enrolment.describe(grpc_peer(), request.nonce)
        return pb.SignedStatement(statement=statement.decode(), signature=signature)

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.Credentials:
        return message_of(await self._enrolment.renew(grpc_peer(), request.csr), pb.Credentials)
