"""The agreed state as the server has it: etcd, or one file (`--single`), or none at all.

A server whose etcd is away starts anyway and serves what needs no state; one that finds another
state than it was told to expect does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import open_etcd
from lattice.adapters.sqlite.store import open_sqlite
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.state import StateStore, StateView
from lattice.server.bootstrap import CLUSTER_KEY, bootstrap, find_cluster
from lattice.server.sections import QuorumSection

SINGLE = "One server with a database of its own: no high availability, no sensitive work."


@dataclass(frozen=True, slots=True)
class AgreedState:
    """The store, and the record of the cluster kept in sight: it tells whether the store is there.

    `note` is what people should know of it, empty where all is as it should be.
    """

    store: StateStore
    cluster: StateView
    note: str = ""


@asynccontextmanager
async def open_state(
    quorum: QuorumSection,
    single: Path | None,
    clock: Clock,
    log: structlog.stdlib.BoundLogger,
    supervisor: Supervisor,
) -> AsyncIterator[AgreedState | None]:
    """None where neither etcd nor a folder was named. Raises `ConfigurationError`."""
    if single is None and not quorum.endpoints:
        log.warning("no agreed state", hint="Set quorum.endpoints, or start with --single DIR.")
        yield None
        return
    async with _store(quorum, single, clock) as store:
        if single is not None:
            await _begin_once(store, clock, log)
            log.warning("single server", note=SINGLE, folder=str(single))
        try:
            record = await find_cluster(store)
            log.info("agreed state", cluster=record.id, since=record.created.isoformat())
        except Unavailable as error:
            log.warning("agreed state is away", error=error.message, hint=error.hint)
        view = WatchedStateView(store, CLUSTER_KEY, clock)
        async with supervisor.running(Loop("state cluster", view.run, OnFailure.RESTART)):
            yield AgreedState(store, view, SINGLE if single is not None else "")


async def bootstrap_state(
    quorum: QuorumSection, clock: Clock, log: structlog.stdlib.BoundLogger
) -> None:
    """Begin the state in etcd, once."""
    if not quorum.endpoints:
        raise ConfigurationError(
            "There is no etcd to bootstrap: quorum.endpoints is empty.",
            hint="Name etcd's members; with --single there is nothing to bootstrap.",
        )
    async with _store(quorum, None, clock) as store:
        record = await bootstrap(store, clock)
    log.info("bootstrapped", cluster=record.id, endpoints=list(quorum.endpoints))


@asynccontextmanager
async def _store(
    quorum: QuorumSection, single: Path | None, clock: Clock
) -> AsyncIterator[StateStore]:
    if single is None:
        tls = EtcdTls(quorum.ca, quorum.cert, quorum.key)
        async with open_etcd(quorum.endpoints, tls, clock) as etcd:
            yield etcd
        return
    if quorum.endpoints:
        raise ConfigurationError(
            "--single keeps the state in a folder, and quorum.endpoints names an etcd.",
            hint="Leave out one of the two.",
        )
    async with open_sqlite(single) as file:
        yield file


async def _begin_once(store: StateStore, clock: Clock, log: structlog.stdlib.BoundLogger) -> None:
    if await store.get(CLUSTER_KEY) is None:
        log.info("bootstrapped", cluster=(await bootstrap(store, clock)).id)
