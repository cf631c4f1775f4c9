"""The door of the agents' listener: certificates of the cluster, and nothing else.

TLS has shown that the cluster's authority signed the certificate before anything here runs. Here
it is read (who is it?), held against what the rpc declares (a node, or a replica?), and put before
`admit` (is it revoked, or in quarantine?). Rpcs for people do not exist on this listener.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import grpc
from grpc import aio

from lattice.base.errors import InternalError, LatticeError, PermissionRefused
from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.wire.guard import Handler
from lattice.wire.peer import peer_of
from lattice.wire.status import grpc_status

KINDS = {"AGENT": PeerKind.NODE, "REPLICA": PeerKind.REPLICA}

_PEER: ContextVar[PeerIdentity] = ContextVar("lattice_grpc_peer")


def grpc_peer() -> PeerIdentity:
    """The verified node or replica whose rpc runs in this task."""
    return _PEER.get()


class PeerGuard(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Admits nodes and replicas to the rpcs that are declared for them. Default is deny."""

    def __init__(
        self,
        permissions: Mapping[str, str],
        admit: Callable[[PeerIdentity], None],
        refused: Callable[[str, str, LatticeError], None],
        on_defect: Callable[[str, BaseException], None],
    ) -> None:
        self._permissions = permissions
        self._admit = admit
        self._refused = refused
        self._on_defect = on_defect

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        rpc = handler_call_details.method.lstrip("/")
        streams = handler.stream_stream is not None
        behaviour: Any = handler.stream_stream if streams else handler.unary_unary

        async def guarded(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            try:
                _PEER.set(self._known(rpc, context))
                return await behaviour(request, context)
            except LatticeError as error:
                await context.abort(*grpc_status(error))
            except aio.AbortError:
                raise
            except Exception as defect:  # noqa: BLE001 - the last door: a defect must not speak
                self._on_defect(rpc, defect)
                await context.abort(*grpc_status(InternalError("Lattice failed here.")))

        shape = (
            grpc.stream_stream_rpc_method_handler
            if streams
            else grpc.unary_unary_rpc_method_handler
        )
        return shape(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _known(self, rpc: str, context: aio.ServicerContext[Any, Any]) -> PeerIdentity:
        who = context.peer()
        try:
            needed = KINDS.get(self._permissions.get(rpc, ""))
            peer = peer_of(context)
            who = peer.uri
            if needed is None or peer.kind is not needed:
                raise PermissionRefused(f"{rpc} is not for a {peer.kind.value}.")
            self._admit(peer)
        except LatticeError as error:
            self._refused(rpc, who, error)
            raise
        return peer
