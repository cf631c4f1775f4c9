"""The server's part of locks, put together: the locks in force, known within seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpc import aio

from lattice.access.actor import Actor
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateStore
from lattice.features.locks import http
from lattice.features.locks.rpc import LockRpc
from lattice.features.locks.service.book import LIST_EVERY_S, LOCKS, LockBook
from lattice.features.locks.service.locking import Journal, LockService
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.locks_pb2_grpc import add_LockServiceServicer_to_server


@asynccontextmanager
async def open_locks(
    store: StateStore, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[LockBook]:
    """Keeps the locks in sight until the context ends."""
    view = WatchedStateView(store, LOCKS, clock, list_every_s=LIST_EVERY_S)
    book = LockBook(store, view, clock)
    async with supervisor.running(
        Loop("state locks", view.run, OnFailure.RESTART),
        Loop("changed locks", book.run, OnFailure.RESTART),
    ):
        yield book


def lock_service(
    book: LockBook | None, scheduler: Scheduler, clock: Clock, journal: Journal
) -> LockService | None:
    """None where there is no agreed state, and so nothing that could be locked."""
    return LockService(book, scheduler, clock, journal) if book else None


def offer_locks(service: LockService | None, routes: GuardedRoutes[Actor]) -> None:
    """Over HTTP."""
    if service is not None:
        http.offer(routes, service)


def serve_locks(service: LockService | None, server: aio.Server) -> None:
    """Over gRPC."""
    if service is not None:
        add_LockServiceServicer_to_server(LockRpc(service), server)
