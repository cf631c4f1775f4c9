"""The agreed state of the server: etcd, one file (`--single`), or a temporary file.

A server without a reachable etcd starts anyway and serves what needs no state. One that finds an
unexpected state does not start.

The record under `cluster` is written once when a cluster begins, and checked by every starting
server. A server never begins a cluster by accident. With an empty etcd or the wrong root it would
otherwise lose every claim and session.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import EtcdStateStore, open_etcd
from lattice.adapters.sqlite.store import open_sqlite
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord, read_cluster
from lattice.domain.quorum import MembersOf
from lattice.domain.state import Expect, Put, StateStore, StateView
from lattice.server.config.sections import QuorumSection, ServerConfig

SINGLE = "One server with a database of its own: no high availability, no sensitive work."
MOVED = "moved.json"
"""In the folder of a single server whose state is in etcd now."""
PASSING = "The state ends with this server: nothing can be shared or locked."


async def bootstrap(store: StateStore, clock: Clock) -> ClusterRecord:
    """Begin a cluster's state; `ConfigurationError` if there is one already."""
    record = ClusterRecord(uuid.uuid4().hex, clock.now())
    try:
        done = await store.commit([Expect(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, record.encoded())])
    except Unavailable:
        # It may have happened: then the record is ours, or another's by now.
        entry = await store.get(CLUSTER_KEY)
        if entry is None:
            raise
        done = entry.revision if entry.value == record.encoded() else None
    if done is None:
        there = await find_cluster(store)
        raise ConfigurationError(
            f"The state is bootstrapped already: cluster {there.id}, since {there.created}.",
            hint="Start the server without --bootstrap.",
        )
    return record


async def find_cluster(store: StateStore) -> ClusterRecord:
    """The cluster of this state; `ConfigurationError` if there is none or it is not readable."""
    entry = await store.get(CLUSTER_KEY)
    if entry is None:
        raise ConfigurationError(
            "There is no cluster's state yet.",
            hint="Begin it, once, with `lattice-server --config F --bootstrap`; "
            "if there was one, quorum.endpoints names the wrong etcd.",
        )
    return read_cluster(entry)


@dataclass(frozen=True, slots=True)
class AgreedState:
    """The store, and a view of the cluster's record, which shows whether the store answers.

    `note` is a warning for people, empty if all is as it should be.
    """

    store: StateStore
    cluster: StateView
    note: str = ""
    members: MembersOf | None = None
    """Asks the members of etcd; None without etcd."""

    @property
    def lasts(self) -> bool:
        """False if the state ends with this process."""
        return self.note != PASSING


@asynccontextmanager
async def open_state(
    config: ServerConfig,
    clock: Clock,
    log: structlog.stdlib.BoundLogger,
    supervisor: Supervisor,
) -> AsyncIterator[AgreedState]:
    """The state until the context ends. Raises `ConfigurationError`."""
    quorum, single = config.quorum, config.single
    async with AsyncExitStack() as stack:
        note = SINGLE if single is not None else ""
        folder = single
        if single is None and not quorum.endpoints:
            note = PASSING
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="lattice-state-")))
            log.warning("no agreed state", hint="Set quorum.endpoints, or start with --single DIR.")
        store = await stack.enter_async_context(_store(quorum, folder, clock))
        if folder is not None:
            await _begin_once(store, clock, log)
        if single is not None:
            log.warning("single server", note=SINGLE, folder=str(single))
        await _log_cluster(store, log)
        view = WatchedStateView(store, CLUSTER_KEY, clock)
        loop = Loop("state cluster", view.run, OnFailure.RESTART)
        await stack.enter_async_context(supervisor.running(loop))
        members = store.members if isinstance(store, EtcdStateStore) else None
        yield AgreedState(store, view, note, members)


async def _log_cluster(store: StateStore, log: structlog.stdlib.BoundLogger) -> None:
    try:
        record = await find_cluster(store)
        log.info("agreed state", cluster=record.id, since=record.created.isoformat())
    except Unavailable as error:
        log.warning("agreed state is away", error=error.message, hint=error.hint)


async def bootstrap_state(
    quorum: QuorumSection, clock: Clock, log: structlog.stdlib.BoundLogger
) -> None:
    """Begin the state in etcd, once. Raises `ConfigurationError`."""
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
    if (single / MOVED).exists():
        raise ConfigurationError(
            f"The state of {single} was moved to etcd: {single / MOVED} names it.",
            hint="Start the server with its new configuration, without --single.",
        )
    async with open_sqlite(single) as file:
        yield file


async def _begin_once(store: StateStore, clock: Clock, log: structlog.stdlib.BoundLogger) -> None:
    if await store.get(CLUSTER_KEY) is None:
        log.info("bootstrapped", cluster=(await bootstrap(store, clock)).id)
