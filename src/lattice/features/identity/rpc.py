"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.identity.convert import discovery_message, identity_message
from lattice.features.identity.service import IdentityService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import identity_pb2 as pb
from lattice.wire.v1 import identity_pb2_grpc


class IdentityRpc(identity_pb2_grpc.IdentityServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: IdentityService) -> None:
        self._service = service

    async def GetAuthDiscovery(
        self, request: pb.GetAuthDiscoveryRequest, context: Any
    ) -> pb.AuthDiscovery:
        return discovery_message(await self._service.discovery())

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.Identity:
        return identity_message(await self._service.whoami(grpc_caller()))
