"""Wires the feature: its services, the loop that removes old records, the terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from grpc import aio

from lattice.access.actor import Actor
from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.features.attach import wire as own_wire
from lattice.features.attach.operations import ISSUE_ATTACH_TICKET, LIST_ATTACH_SESSIONS
from lattice.features.attach.section import AttachSection
from lattice.features.attach.service.questions import HelperQuestions
from lattice.features.attach.service.records import AttachListing, RecordCleanup, SessionRecords
from lattice.features.attach.service.registry import SessionRegistry
from lattice.features.attach.service.session import AttachService
from lattice.features.attach.service.tickets import AttachTickets
from lattice.features.attach.wire import RPC, AttachRpc
from lattice.foundation.foundation import Foundation, NodeAccess
from lattice.foundation.wiring import Wiring
from lattice.wire.guard import GuardedRoutes


def bindings(listing: AttachListing, tickets: AttachTickets) -> tuple[AnyBinding, ...]:
    return (
        ISSUE_ATTACH_TICKET.to(lambda actor, asked: tickets.issue(actor, asked.id)),
        LIST_ATTACH_SESSIONS.to(
            lambda actor, asked: listing.of(actor, name=asked.id, only_open=asked.open)
        ),
    )


def wire(foundation: Foundation, nodes: NodeAccess, section: AttachSection) -> Wiring:
    clock, replica = foundation.clock, foundation.replica
    retention = timedelta(days=section.record_days)
    records = SessionRecords(foundation.state, clock, replica, retention)
    finder = foundation.finder
    keeping = SessionRegistry(
        foundation.limits,
        records,
        clock,
        foundation.journal,
        foundation.sensitive_acts,
        locks=foundation.locks,
    )
    asking = HelperQuestions(nodes.signer, uncontained=section.uncontained)
    service = AttachService(
        foundation.scheduler, finder, nodes.streams, asking, keeping, clock, replica
    )
    foundation.own_metrics.show(lambda: {"attach_connections": float(service.open)})
    tickets = AttachTickets(finder, foundation.signed_state, clock)
    tidying = RecordCleanup(records, clock, foundation.replicas)
    removal = Loop("attach records", tidying.run, OnFailure.RESTART)
    return Wiring(
        bindings=bindings(AttachListing(finder, records), tickets),
        offer=terminal(service, tickets, frozenset(section.origins)),
        loops=(removal,),
        close=keeping.aclose,
    )


def terminal(
    service: AttachService, tickets: AttachTickets, origins: frozenset[str]
) -> Callable[[GuardedRoutes[Actor], aio.Server], None]:
    """Adds the terminal to both listeners. `origins`: pages that may open one."""

    def offer(routes: GuardedRoutes[Actor], server: aio.Server) -> None:
        own_wire.offer(routes, service, tickets, origins)
        rpc = AttachRpc(service, routes.authorised(RPC))
        server.add_generic_rpc_handlers((rpc.handlers(),))

    return offer
