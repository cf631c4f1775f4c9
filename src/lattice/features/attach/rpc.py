"""The feature over gRPC, for services. `Attach` takes its messages as bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from lattice.access.actor import Actor
from lattice.base.errors import UsageError
from lattice.domain.stream import CarrierLost
from lattice.features.attach.convert import sessions_message, ticket_message
from lattice.features.attach.service.attaching import AttachService
from lattice.features.attach.service.listing import AttachListing
from lattice.features.attach.service.tickets import AttachTickets
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.guard import grpc_caller
from lattice.wire.lines import GrpcLine
from lattice.wire.v1 import attach_pb2 as pb
from lattice.wire.websocket import Standing

RPC = "lattice.v1.AttachService/Attach"


class AttachRpc:
    """`AttachService` on the people's listener. The guard has verified the caller."""

    def __init__(
        self,
        service: AttachService,
        listing: AttachListing,
        tickets: AttachTickets,
        authorise: Callable[[str], Awaitable[Actor]],
    ) -> None:
        """`authorise` judges a token again for `Attach`."""
        self._service = service
        self._listing = listing
        self._tickets = tickets
        self._authorise = authorise

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """To be added to a server."""
        return grpc.method_handlers_generic_handler(
            "lattice.v1.AttachService",
            {
                "Attach": grpc.stream_stream_rpc_method_handler(self.attach),
                "IssueAttachTicket": grpc.unary_unary_rpc_method_handler(
                    self.issue_ticket,
                    request_deserializer=pb.IssueAttachTicketRequest.FromString,
                    response_serializer=pb.AttachTicket.SerializeToString,
                ),
                "ListAttachSessions": grpc.unary_unary_rpc_method_handler(
                    self.list_sessions,
                    request_deserializer=pb.ListAttachSessionsRequest.FromString,
                    response_serializer=pb.AttachSessions.SerializeToString,
                ),
            },
        )

    async def attach(self, _requests: Any, context: Any) -> None:
        carrier = GrpcCarrier(context)
        try:
            opening = await carrier.opening()
        except CarrierLost:
            raise UsageError("The stream was not opened.") from None
        try:
            start = opening.opening.decode()
        except UnicodeDecodeError:
            raise UsageError("The first message is not `start`.") from None
        # The door itself looks at the caller's token again, and ends the rpc.
        standing = Standing(grpc_caller(), self._authorise, "")
        told = await self._service.serve(standing, opening.allocation, GrpcLine(carrier, start))
        if told is not None:
            raise told

    async def issue_ticket(
        self, request: pb.IssueAttachTicketRequest, context: Any
    ) -> pb.AttachTicket:
        return ticket_message(await self._tickets.issue(grpc_caller(), request.id))

    async def list_sessions(
        self, request: pb.ListAttachSessionsRequest, context: Any
    ) -> pb.AttachSessions:
        answer = await self._listing.of(grpc_caller(), name=request.id, only_open=request.open)
        return sessions_message(answer)
