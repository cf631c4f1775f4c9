"""Opens what a server has in the agreed state: shares, locks, claims, data keys, the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from lattice.access.grants import GrantSigner
from lattice.adapters.signedstate import RecordSigner, SignedStateStore
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.claim import CLAIMS
from lattice.domain.scheduler import Scheduler
from lattice.domain.site_keys import SiteKeys
from lattice.domain.state import StateStore
from lattice.features.audit.service.chain import AuditChain
from lattice.features.audit.service.log import AuditLog
from lattice.features.claims.service.ledger import ClaimBook
from lattice.features.locks.service import LIST_EVERY_S, LOCKS, LockBook
from lattice.features.sharing.service.sharing import SHARES, SharedAllocations
from lattice.foundation.data_keys import DataKeys
from lattice.foundation.own_metrics import OwnMetrics
from lattice.foundation.unfinished import UnfinishedAllocations
from lattice.server.cluster.state import find_cluster


@asynccontextmanager
async def open_shares(
    state: StateStore, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[SharedAllocations]:
    view = WatchedStateView(state, SHARES, clock)
    async with supervisor.running(Loop("state shares", view.run, OnFailure.RESTART)):
        yield SharedAllocations(state, view, clock)


@asynccontextmanager
async def open_locks(
    state: StateStore, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[LockBook]:
    view = WatchedStateView(state, LOCKS, clock, list_every_s=LIST_EVERY_S)
    book = LockBook(state, view, clock)
    async with supervisor.running(
        Loop("state locks", view.run, OnFailure.RESTART),
        Loop("changed locks", book.run, OnFailure.RESTART),
    ):
        yield book


@asynccontextmanager
async def open_claims(
    state: StateStore, signer: RecordSigner, clock: Clock, supervisor: Supervisor
) -> AsyncIterator[ClaimBook]:
    view = WatchedStateView(SignedStateStore(state, signer), CLAIMS, clock)
    async with supervisor.running(Loop("state claims", view.run, OnFailure.RESTART)):
        yield ClaimBook(view)


@asynccontextmanager
async def open_data_keys(
    state: StateStore,
    site_keys: SiteKeys | None,
    scheduler: Scheduler,
    clock: Clock,
    own_metrics: OwnMetrics,
    supervisor: Supervisor,
) -> AsyncIterator[DataKeys | None]:
    """None without keys of the site."""
    if site_keys is None:
        yield None
        return

    async def cluster_id() -> str:
        return (await find_cluster(state)).id

    keys = DataKeys(state, site_keys, cluster_id, clock, UnfinishedAllocations(scheduler).refs)
    counts = keys.counts
    own_metrics.watch(
        lambda: {f"data_keys_{name}": float(value) for name, value in asdict(counts).items()}
    )
    own_metrics.show(lambda: {"data_keys_in_memory": float(len(keys.cached))})
    async with supervisor.running(
        Loop("data keys", keys.run, OnFailure.RESTART),
        Loop("data keys wrapped", keys.run_wrapping, OnFailure.RESTART),
    ):
        yield keys


def open_audit_log(state: StateStore, clock: Clock, signer: GrantSigner) -> AuditLog:
    """The audit log of this server. Its loop runs while the feature is offered."""

    async def cluster_id() -> str:
        return (await find_cluster(state)).id

    chain = AuditChain(state, clock, signer.sign_audit, signer.public_keys, cluster_id)
    return AuditLog(chain)
