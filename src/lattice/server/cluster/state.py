"""The agreed state of the server: etcd, one file (`--single`), or a temporary file.

A server without a reachable etcd starts anyway and serves what needs no state. One that finds an
unexpected state does not start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import open_etcd
from lattice.adapters.sqlite.store import open_sqlite
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.state import StateStore, StateView
from lattice.server.cluster.bootstrap import CLUSTER_KEY, bootstrap, find_cluster
from lattice.server.config.sections import QuorumSection

SINGLE = "One server with a database of its own: no high availability, no sensitive work."
PASSING = "The state ends with this server: nothing can be shared or locked."


@dataclass(frozen=True, slots=True)
class AgreedState:
    """The store, and a view of the cluster's record, which shows whether the store answers.

    `note` is a warning for people, empty if all is as it should be.
    """

    store: StateStore
    cluster: StateView
    note: str = ""

    @property
    def lasts(self) -> bool:
        """False if the state ends with this process."""
        return self.note != PASSING


@asynccontextmanager
async def open_state(
    quorum: QuorumSection,
    single: Path | None,
    clock: Clock,
    log: structlog.stdlib.BoundLogger,
    supervisor: Supervisor,
) -> AsyncIterator[AgreedState]:
    """The state until the context ends. Raises `ConfigurationError`."""
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
        await _tell(store, log)
        view = WatchedStateView(store, CLUSTER_KEY, clock)
        loop = Loop("state cluster", view.run, OnFailure.RESTART)
        await stack.enter_async_context(supervisor.running(loop))
        yield AgreedState(store, view, note)


async def _tell(store: StateStore, log: structlog.stdlib.BoundLogger) -> None:
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
    async with open_sqlite(single) as file:
        yield file


async def _begin_once(store: StateStore, clock: Clock, log: structlog.stdlib.BoundLogger) -> None:
    if await store.get(CLUSTER_KEY) is None:
        log.info("bootstrapped", cluster=(await bootstrap(store, clock)).id)
