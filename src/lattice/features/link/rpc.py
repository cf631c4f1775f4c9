"""The feature over gRPC, for agents, replicas and operators; the guards have verified each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc

from lattice.access.limits import LimitVerdict, Questions
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.domain.stream import CarrierLost
from lattice.features.link.service.broker import NodeStreamBroker
from lattice.features.link.service.hub import LinkHub
from lattice.features.link.service.probe import ProbeService
from lattice.features.link.service.routes import HeldLink
from lattice.wire.carriers import EOF, GrpcCarrier
from lattice.wire.guard import grpc_caller
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import link_pb2 as pb
from lattice.wire.v1 import link_pb2_grpc

_HELLO_S = 10.0


class _Line:
    """Writes to an agent while its messages are read; `end` ends the reading."""

    __slots__ = ("_until_ended", "write")

    def __init__(self, context: Any, until_ended: asyncio.Timeout) -> None:
        self.write: Callable[[pb.LinkDown], Awaitable[None]] = context.write
        self._until_ended = until_ended

    def end(self) -> None:
        with suppress(RuntimeError):  # the reading has ended
            self._until_ended.reschedule(0.0)


class LinkRpc:
    """`LinkService` on the agents' listener. `Carry` takes its messages as bytes."""

    def __init__(
        self,
        hub: LinkHub,
        desk: NodeStreamBroker,
        replicas: Callable[[], Iterable[str]],
    ) -> None:
        self._hub = hub
        self._desk = desk
        self._replicas = replicas

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        return grpc.method_handlers_generic_handler(
            "lattice.v1.LinkService",
            {
                "Link": grpc.stream_stream_rpc_method_handler(
                    self.link,
                    request_deserializer=pb.LinkUp.FromString,
                    response_serializer=pb.LinkDown.SerializeToString,
                ),
                "Carry": grpc.stream_stream_rpc_method_handler(self.carry),
                "Standby": grpc.unary_unary_rpc_method_handler(
                    self.standby,
                    request_deserializer=pb.StandbyRequest.FromString,
                    response_serializer=pb.StandbyAnswer.SerializeToString,
                ),
            },
        )

    async def link(self, _requests: Any, context: Any) -> None:
        hello = await self._hello(context)
        async with self._hub.holding(grpc_peer(), hello, context.peer()) as held:
            # Welcome first, publish later: after a replica's death thousands of agents link at
            # once, and none should wait for the state store.
            await context.write(pb.LinkDown(welcome=self._hub.welcome(held, self._replicas())))
            try:
                async with asyncio.timeout(None) as until_ended:
                    held.open(_Line(context, until_ended))
                    await self._read(held, context)
            except TimeoutError:
                pass  # this replica has ended it
            finally:
                await held.close()

    async def _hello(self, context: Any) -> pb.Hello:
        try:
            async with asyncio.timeout(_HELLO_S):
                first = await context.read()
        except TimeoutError:
            raise UsageError("The agent did not say who it is.") from None
        if first is EOF or first.WhichOneof("message") != "hello":
            raise UsageError("The first message of a link is a hello.")
        hello: pb.Hello = first.hello
        return hello

    async def _read(self, held: HeldLink, context: Any) -> None:
        while (message := await context.read()) is not EOF:
            if message.WhichOneof("message") == "ping":
                self._hub.answer_ping(held, message.ping)

    async def carry(self, _requests: Any, context: Any) -> None:
        carrier = GrpcCarrier(context, is_probed=True)
        try:
            opening = await carrier.opening()
        except CarrierLost:
            return
        await self._desk.arrived(grpc_peer(), opening, carrier)

    async def standby(self, _request: pb.StandbyRequest, context: Any) -> pb.StandbyAnswer:
        self._hub.standby.note(grpc_peer().name, context.peer())
        return pb.StandbyAnswer(replica=self._hub.replica)


class PeerRpc(link_pb2_grpc.PeerServiceServicer):
    """`PeerService` on the agents' listener, for other replicas."""

    def __init__(self, hub: LinkHub, judge: Callable[[str, Questions], LimitVerdict]) -> None:
        """`judge` checks the token buckets on this replica."""
        self._hub = hub
        self._judge = judge

    async def TakeToken(self, request: pb.TakeTokenRequest, context: Any) -> pb.TakeTokenAnswer:
        try:
            kind = Questions(request.kind)
        except ValueError:
            raise UsageError("No such limit is known here.") from None
        verdict = self._judge(request.sub, kind)
        return pb.TakeTokenAnswer(granted=verdict.granted, wait_s=verdict.wait_s)

    async def PassTicket(self, request: pb.PassTicketRequest, context: Any) -> pb.PassTicketAnswer:
        if request.others:
            return pb.PassTicketAnswer(handed=map(self._is_handed, (request, *request.others)))
        self._hub.hand(request.node, request.epoch, request.ticket)
        return pb.PassTicketAnswer()

    def _is_handed(self, request: pb.PassTicketRequest) -> bool:
        try:
            self._hub.hand(request.node, request.epoch, request.ticket)
        except Unavailable:
            return False
        return True


class ProbeRpc:
    """`EchoNode` on the people's listener; it takes its messages as bytes."""

    def __init__(self, service: ProbeService) -> None:
        self._service = service

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        return grpc.method_handlers_generic_handler(
            "lattice.v1.LinkProbe",
            {"EchoNode": grpc.stream_stream_rpc_method_handler(self.echo)},
        )

    async def echo(self, _requests: Any, context: Any) -> None:
        carrier = GrpcCarrier(context)
        try:
            opening = await carrier.opening()
        except CarrierLost:
            raise PermissionRefused("The stream was not opened.") from None
        await self._service.echo(grpc_caller(), opening, carrier)
