"""The feature over HTTP: a WebSocket for the terminal, and two routes beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from fastapi import HTTPException, Path, Query, Request

from lattice.access.actor import Actor
from lattice.base.errors import NotFound
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.features.attach.model import (
    PROTOCOL,
    TICKET_PREFIX,
    AttachSessions,
    AttachTicket,
)
from lattice.features.attach.service.attaching import AttachService
from lattice.features.attach.service.listing import AttachListing
from lattice.features.attach.service.tickets import AttachTickets
from lattice.wire.guard import GuardedRoutes
from lattice.wire.websocket import SocketLine, SocketRules, Standing

_Id = Annotated[str, Path(pattern=REFERENCE_PATTERN)]
_REFERENCE = re.compile(REFERENCE_PATTERN, re.ASCII)
_PATH = "/allocations/{id}/attach"


def offer(
    routes: GuardedRoutes[Actor],
    service: AttachService,
    listing: AttachListing,
    tickets: AttachTickets,
    origins: frozenset[str],
) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.AttachService/"

    async def attach(standing: Standing[Actor], path: Mapping[str, str], line: SocketLine) -> None:
        await service.serve(standing, path["id"], line)

    async def redeem(ticket: str, path: Mapping[str, str]) -> Actor:
        return await tickets.redeem(ticket, path["id"])

    routes.socket(
        _PATH,
        attach,
        rpc=rpc + "Attach",
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
        rpc=rpc + "Attach",
        response_model=None,
        status_code=101,
        responses={
            101: {"description": f"A WebSocket, if `{PROTOCOL}` is offered."},
            405: {"description": "A request that asks for none."},
        },
    )
    async def not_upgraded(id: _Id) -> None:  # noqa: ARG001 - described by it
        # What a terminal does can't be done with a plain request, whatever its address says.
        raise HTTPException(
            405,
            f"A terminal is a WebSocket of the subprotocol {PROTOCOL}.",
            headers={"Upgrade": "websocket"},
        )

    @routes.post(_PATH + "/tickets", rpc=rpc + "IssueAttachTicket", response_model=AttachTicket)
    async def issue_attach_ticket(request: Request, id: _Id) -> AttachTicket:
        return await tickets.issue(routes.caller(request), id)

    @routes.get("/attach/sessions", rpc=rpc + "ListAttachSessions", response_model=AttachSessions)
    async def list_attach_sessions(
        request: Request,
        allocation: Annotated[str, Query(pattern=f"^$|{REFERENCE_PATTERN}")] = "",
        open: bool = False,
    ) -> AttachSessions:
        return await listing.of(routes.caller(request), name=allocation, only_open=open)


def _check_path(path: Mapping[str, str]) -> None:
    if not _REFERENCE.fullmatch(path["id"]):
        raise NotFound("No such path.", hint="See /v1/openapi.json.")
