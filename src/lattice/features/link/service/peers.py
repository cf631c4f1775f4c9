"""Calls from this replica to others: one cached connection each, with certificates of both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from lattice.access.limits import LimitVerdict, Questions
from lattice.base.errors import Unavailable
from lattice.features.link.model import Replica
from lattice.features.link.service.ticket_batches import NotLinked, TicketBatches
from lattice.wire.dial_reasons import call_failure
from lattice.wire.v1.link_pb2 import PassTicketAnswer, PassTicketRequest, TakeTokenRequest
from lattice.wire.v1.link_pb2_grpc import PeerServiceStub

_TIMEOUT_S = 3.0
_TOKEN_TIMEOUT_S = 1.0

Credentials = Callable[[], grpc.ChannelCredentials]
Options = Callable[[str], Sequence[tuple[str, Any]]]


class Peers:
    """Dials on first use. `credentials` identify this replica; `options` name the expected peer."""

    def __init__(self, credentials: Credentials, options: Options) -> None:
        self._credentials = credentials
        self._options = options
        self._channels: dict[tuple[str, str], aio.Channel] = {}
        self._tickets = TicketBatches(self._pass_tickets)
        self.pass_ticket = self._tickets.pass_ticket

    async def _pass_tickets(self, replica: Replica, request: PassTicketRequest) -> PassTicketAnswer:
        """Ask the replica to send tickets to nodes linked to it. Raises `Unavailable`."""
        stub = PeerServiceStub(self._channel(replica))
        try:
            return await stub.PassTicket(request, timeout=_TIMEOUT_S)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and "not linked" in (
                error.details() or ""
            ):
                raise NotLinked(request.node, replica.id) from None
            # The next call dials again, with the credentials of that time.
            await self._forget(replica)
            raise Unavailable(
                f"The server {replica.id}, which holds the way to the node, does not answer.",
                hint="The node links elsewhere within seconds; try again.",
            ) from None

    async def take_token(self, replica: Replica, sub: str, kind: Questions) -> LimitVerdict:
        """Take one token from a caller's bucket on that replica. Raises `Unavailable`."""
        request = TakeTokenRequest(sub=sub, kind=kind.value)
        try:
            answer = await PeerServiceStub(self._channel(replica)).TakeToken(
                request, timeout=_TOKEN_TIMEOUT_S
            )
        except aio.AioRpcError as error:
            await self._forget(replica)
            reason = call_failure(error.code(), error.details())
            raise Unavailable(
                f"The server {replica.id} does not answer: {reason}.", hint="Try again."
            ) from None
        return LimitVerdict(answer.granted, answer.wait_s)

    def _channel(self, replica: Replica) -> aio.Channel:
        key = (replica.id, replica.address)
        if key not in self._channels:
            self._channels[key] = aio.secure_channel(
                replica.address,
                self._credentials(),
                options=[
                    *self._options(replica.id),
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    ("grpc.max_reconnect_backoff_ms", 1000),
                ],
            )
        return self._channels[key]

    async def _forget(self, replica: Replica) -> None:
        channel = self._channels.pop((replica.id, replica.address), None)
        if channel is not None:
            await channel.close(None)

    async def aclose(self) -> None:
        await self._tickets.aclose()
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()
