"""The server's part of attach, put together: who serves terminals, and who tidies after them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from grpc import aio

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.limits import CallerLimits
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.lock import Locks
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateStore
from lattice.domain.stream import NodeStreams
from lattice.features.attach import http
from lattice.features.attach.rpc import RPC as ATTACH
from lattice.features.attach.rpc import AttachRpc
from lattice.features.attach.service.asking import Asking
from lattice.features.attach.service.attaching import AttachService
from lattice.features.attach.service.keeping import SessionKeeping
from lattice.features.attach.service.listing import AttachListing
from lattice.features.attach.service.records import SessionRecords
from lattice.features.attach.service.tickets import AttachTickets
from lattice.features.attach.service.tidying import Tidying
from lattice.server.attachsection import AttachSection
from lattice.server.figures import Figures
from lattice.server.journal import LoggedJournal
from lattice.wire.guard import GuardedRoutes


@dataclass(frozen=True, slots=True)
class AttachParts:
    """What both faces are given."""

    service: AttachService
    listing: AttachListing
    tickets: AttachTickets
    origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachNeeds:
    """What terminals stand on."""

    scheduler: Scheduler
    nodes: NodeStreams
    signer: GrantSigner
    limits: CallerLimits
    state: StateStore
    signed_state: StateStore
    """The same; what it gives was written by a server."""
    clock: Clock
    replica: str
    replicas: Callable[[], Collection[str]]
    """The ids of the servers that are up."""
    locks: Locks


def offer_attach(parts: AttachParts | None, routes: GuardedRoutes[Actor]) -> None:
    """Over HTTP, where there are terminals at all."""
    if parts is not None:
        http.offer(routes, parts.service, parts.listing, parts.tickets, parts.origins)


def serve_attach(
    parts: AttachParts | None, routes: GuardedRoutes[Actor], server: aio.Server
) -> None:
    """Over gRPC."""
    if parts is not None:
        authorise = routes.authorised(ATTACH)
        rpc = AttachRpc(parts.service, parts.listing, parts.tickets, authorise)
        server.add_generic_rpc_handlers((rpc.handlers(),))


@asynccontextmanager
async def open_attach(
    needs: AttachNeeds,
    section: AttachSection,
    figures: Figures,
    journal: LoggedJournal,
    supervisor: Supervisor,
) -> AsyncIterator[AttachParts]:
    """Until the context ends."""
    clock, state = needs.clock, needs.state
    kept = timedelta(days=section.record_days)
    records = SessionRecords(state, clock, needs.replica, kept)
    finder = AllocationFinder(needs.scheduler, clock)
    keeping = SessionKeeping(needs.limits, records, clock, journal, locks=needs.locks)
    service = AttachService(
        needs.scheduler,
        finder,
        needs.nodes,
        Asking(needs.signer, uncontained=section.uncontained),
        keeping,
        clock,
        needs.replica,
    )
    figures.show(lambda: {"attach_connections": float(service.open)})
    tidying = Tidying(records, clock, needs.replicas)
    try:
        async with supervisor.running(Loop("attach records", tidying.run, OnFailure.RESTART)):
            yield AttachParts(
                service,
                AttachListing(finder, records),
                AttachTickets(finder, needs.signed_state, clock),
                frozenset(section.origins),
            )
    finally:
        await keeping.aclose()
