"""Wires the feature: its service, and the probes that it offers."""

from __future__ import annotations

from grpc import aio

from lattice.access.actor import Actor
from lattice.base.operation import AnyBinding
from lattice.features.link.operations import PING_NODE
from lattice.features.link.rpc import ProbeRpc
from lattice.features.link.service.probe import ProbeService
from lattice.foundation.foundation import Foundation, NodeAccess
from lattice.foundation.wiring import Wiring
from lattice.wire.guard import GuardedRoutes


def bindings(service: ProbeService) -> tuple[AnyBinding, ...]:
    return (PING_NODE.to(lambda actor, asked: service.ping(actor, asked.name, asked.count)),)


def wire(foundation: Foundation, nodes: NodeAccess) -> Wiring:
    service = ProbeService(nodes.streams, nodes.signer, foundation.clock, foundation.replica)

    def offer(_: GuardedRoutes[Actor], server: aio.Server) -> None:
        server.add_generic_rpc_handlers((ProbeRpc(service).handlers(),))

    return Wiring(bindings=bindings(service), offer=offer)
