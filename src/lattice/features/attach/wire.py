"""The terminal over REST and gRPC: a WebSocket, and a stream of bytes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import grpc
from fastapi import HTTPException, Path

from lattice.access.actor import Actor
from lattice.base.errors import NotFound, UsageError
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.domain.stream import CarrierLost
from lattice.features.attach.model import PROTOCOL, TICKET_PREFIX
from lattice.features.attach.service.session import AttachService
from lattice.features.attach.service.tickets import AttachTickets
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.guard import GuardedRoutes, grpc_caller
from lattice.wire.lines import GrpcLine
from lattice.wire.websocket import SocketCaller, SocketLine, SocketRules

RPC = "lattice.v1.AttachService/Attach"
_Id = Annotated[str, Path(pattern=REFERENCE_PATTERN)]
_REFERENCE = re.compile(REFERENCE_PATTERN, re.ASCII)
_PATH = "/allocations/{id}/attach"


class AttachRpc:
    """`Attach` on the people's listener. The guard has verified the caller."""

    def __init__(
        self, service: AttachService, authorise: Callable[[str], Awaitable[Actor]]
    ) -> None:
        """`authorise` checks a newer token for `Attach`."""
        self._service = service
        self._authorise = authorise

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        return grpc.method_handlers_generic_handler(
            "lattice.v1.AttachService",
            {"Attach": grpc.stream_stream_rpc_method_handler(self.attach)},
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
        # The rpc's guard checks the token again, so `check` gets no authorization.
        standing = SocketCaller(grpc_caller(), self._authorise, "")
        error = await self._service.serve(standing, opening.allocation, GrpcLine(carrier, start))
        if error is not None:
            raise error


def offer(
    routes: GuardedRoutes[Actor],
    service: AttachService,
    tickets: AttachTickets,
    origins: frozenset[str],
) -> None:
    """Add the WebSocket to the server's routes."""

    async def attach(
        standing: SocketCaller[Actor], path: Mapping[str, str], line: SocketLine
    ) -> None:
        await service.serve(standing, path["id"], line)

    async def redeem(ticket: str, path: Mapping[str, str]) -> Actor:
        return await tickets.redeem(ticket, path["id"])

    routes.socket(
        _PATH,
        attach,
        rpc=RPC,
        rules=SocketRules(
            protocol=PROTOCOL,
            ticket_prefix=TICKET_PREFIX,
            origins=origins,
            redeem=redeem,
            check_path=_check_path,
        ),
    )

    @routes.get(
        _PATH,
        rpc=RPC,
        status_code=101,
        responses={
            101: {"description": f"A WebSocket, if `{PROTOCOL}` is offered."},
            405: {"description": "A request that asks for none."},
        },
    )
    async def not_upgraded(id: _Id) -> None:  # noqa: ARG001 - described by it
        # A plain request can't open a terminal.
        raise HTTPException(
            405,
            f"A terminal is a WebSocket of the subprotocol {PROTOCOL}.",
            headers={"Upgrade": "websocket"},
        )


def _check_path(path: Mapping[str, str]) -> None:
    if not _REFERENCE.fullmatch(path["id"]):
        raise NotFound("No such path.", hint="See /v1/openapi.json.")
