"""gRPC for nodes: tokens of their jobs, and what a job may know of itself."""

from __future__ import annotations

from typing import Any

from lattice.features.identity.service.job_identity import JobIdentityService
from lattice.wire.convert import message_of
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import identity_pb2 as pb
from lattice.wire.v1 import identity_pb2_grpc


class JobIdentityRpc(identity_pb2_grpc.JobIdentityServiceServicer):
    """Runs on the agents' listener. The certificate alone names the node."""

    def __init__(self, service: JobIdentityService) -> None:
        self._service = service

    async def IssueJobToken(
        self, request: pb.IssueJobTokenRequest, context: Any
    ) -> pb.IssuedJobToken:
        node = grpc_peer().name
        issued = await self._service.issue(node, request.job_id, request.started)
        return message_of(issued, pb.IssuedJobToken)

    async def DescribeJob(self, request: pb.DescribeJobRequest, context: Any) -> pb.JobSelf:
        found = await self._service.describe(grpc_peer().name, request.token)
        return message_of(found, pb.JobSelf)
