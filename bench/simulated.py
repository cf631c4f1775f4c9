"""Servers for benches: what they serve is real; Slurm and the agreed state are made up.

`serving` is a server as agents meet it: its listener with certificates and guard, the
links, the intakes of samples and of output, and what agents are told of their jobs. `LinkedServer`
is one that people ask about jobs, and that asks the nodes which are linked to it. `people_served`
has the listeners for people as they are in a server.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trustme
import uvicorn
from fastapi import FastAPI

from bench.measuring import HERE, free_port
from lattice.base.address import Address
from lattice.base.clock import SystemClock
from lattice.base.errors import NotFound
from lattice.base.pauses import LoopPauses
from lattice.base.supervisor import Supervisor
from lattice.domain.allocation import Allocation
from lattice.domain.cluster_record import CLUSTER_KEY
from lattice.domain.metricstore import MetricStore
from lattice.domain.outputs import NamedOutputs
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.locks.service import LOCKS, LockBook
from lattice.features.logs.rpc import LogIntakeRpc
from lattice.features.logs.service.intake import LogIntake
from lattice.features.logs.service.seal import Seals
from lattice.features.telemetry.service.node_follow import Means
from lattice.features.telemetry.service.node_snapshots import AgentSnapshots
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.foundation import LoggedJournal
from lattice.foundation.own_metrics import OwnMetrics
from lattice.foundation.wiring import Wiring
from lattice.server.cluster.agent_listener import agent_listener, open_links
from lattice.server.cluster.agents import as_single_server, open_agents
from lattice.server.cluster.cluster_view import open_cluster_view
from lattice.server.cluster.limits import NoOtherReplica, Rates, limit_table
from lattice.server.cluster.state import AgreedState
from lattice.server.config.api_section import ApiSection
from lattice.server.config.sections import RateLimitsSection, ServerConfig
from lattice.server.listeners.composition import Faces
from lattice.server.listeners.listeners import listening, open_connections, server_tls
from lattice.server.measurement import Measurement, MeasurementNeeds, open_measurement
from lattice.wire.v1.logs_pb2_grpc import add_LogIntakeServicer_to_server
from tests.fakes.cluster import ACCOUNTS
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.integration.link.site import Server, Site

PEOPLE_CA = "people-ca.pem"
"""The authority of the listeners for people."""
_REPLICA = "r1"
_BEGAN = "began"


class StillScheduler(InMemoryScheduler):
    """Nothing changes in it, so that it is read once and found the same from then on."""

    def read(self) -> None:
        if self._cluster is None:
            super().read()
        else:
            self._cluster = self._cluster.confirmed(self._clock.now())
            self._read_at_s = self._clock.monotonic()


class _NoFiles:
    """Slurm names no output files."""

    async def of(self, allocation: Allocation) -> NamedOutputs:
        raise NotFound(f"Slurm names no files of job {allocation.id}.")


@asynccontextmanager
async def serving(
    folder: Path, port: int, scheduler: InMemoryScheduler, store: MetricStore
) -> AsyncIterator[Measurement]:
    """Agents are served on that port until the context ends; the authority is in the folder."""
    clock = SystemClock()
    state = InMemoryStateStore(clock)
    own_metrics = OwnMetrics()
    supervisor = Supervisor(clock, lambda: None)
    log: Any = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
    )
    journal = LoggedJournal(log, own_metrics)
    config = as_single_server(
        ServerConfig(api=ApiSection(agent_listen=Address(HERE, port))), folder
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        view = await enter(
            open_cluster_view(config, state, clock, _REPLICA, supervisor, lambda _: False)
        )
        agents = await enter(
            open_agents(
                config,
                AgreedState(state, InMemoryStateView(state, CLUSTER_KEY)),
                clock,
                supervisor,
                replica_id=_REPLICA,
                presences=view.presences,
                replicas=view.addresses,
            )
        )
        assert agents is not None
        locks = LockBook(state, InMemoryStateView(state, LOCKS), clock)
        links = await enter(open_links(view, agents, locks, own_metrics, supervisor))
        needs = MeasurementNeeds(
            scheduler=scheduler,
            state=state,
            store=store,
            clock=clock,
            own_metrics=own_metrics,
            journal=journal,
            supervisor=supervisor,
            is_sensitive=lambda _: False,
            believe=agents.trust.admit,
        )
        measurement = await enter(
            open_measurement(needs, config.telemetry, links.desk, agents.signer)
        )
        objects = InMemoryObjectStore(clock)
        intake = LogIntake(
            AttemptFinder(scheduler, clock),
            _NoFiles(),
            objects,
            agents.signer,
            journal,
            clock,
            Seals(objects, agents.signer, agents.signer.public_keys),
        )
        rates = Rates(
            limit_table(RateLimitsSection()),
            clock,
            replica=_REPLICA,
            replicas=lambda: (_REPLICA,),
            others=NoOtherReplica(),
        )
        wirings = (
            Wiring(offer_agents=measurement.offer_agents),
            Wiring(offer_agents=partial(add_LogIntakeServicer_to_server, LogIntakeRpc(intake))),
        )
        address = str(config.api.agent_listen)
        await enter(agent_listener(address, view, agents, links, rates, journal, log, wirings))
        yield measurement


class LinkedServer:
    """Jobs that run, the nodes that link to it, and how it looks at them."""

    def __init__(self, folder: Path, jobs: Sequence[Allocation], mode: Mode, step_s: float) -> None:
        self.clock = SystemClock()
        self.site = Site(folder)
        self._server = Server(self.site, _REPLICA)
        self.desk = self._server.desk
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.scheduler.allocations = list(jobs)
        self.whose = AttemptFinder(self.scheduler, self.clock).of
        in_force = ModeInForce(allocation="", mode=mode, interval_s=step_s)
        self.looks = AgentSnapshots(
            Means(
                nodes=self.desk,
                signer=self.site.signer,
                clock=self.clock,
                find_attempt=self.whose,
                modes=lambda _: in_force,
            )
        )
        (folder / _BEGAN).write_text(str(self.began))

    @property
    def began(self) -> float:
        """All of them at once."""
        started = self.scheduler.allocations[0].started
        assert started is not None
        return started.timestamp()

    @property
    def linked(self) -> int:
        return len(self._server.hub.held)

    async def start(self) -> int:
        """The port that nodes dial."""
        await self._server.start()
        return self._server.port


def began_of(folder: Path) -> float:
    """When the jobs of the linked server in this folder began."""
    return float((folder / _BEGAN).read_text())


@asynccontextmanager
async def rest_served(app: FastAPI) -> AsyncIterator[int]:
    """The port that people ask."""
    port = free_port()
    door = uvicorn.Server(
        uvicorn.Config(app, host=HERE, port=port, log_level="error", lifespan="off")
    )
    task = asyncio.create_task(door.serve(), name="rest")
    while not door.started and not task.done():
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        door.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def people_served(faces: Faces, folder: Path) -> AsyncIterator[str]:
    """The URL of a server's own listeners for people, with TLS; the folder gets `PEOPLE_CA`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / PEOPLE_CA))
    leaf, key, certificate = (
        authority.issue_cert(HERE),
        folder / "people.key",
        folder / "people.crt",
    )
    leaf.private_key_pem.write_to_path(str(key))
    leaf.cert_chain_pems[0].write_to_path(str(certificate))
    api = ApiSection(
        rest_listen=Address(HERE, free_port()),
        grpc_listen=Address(HERE, free_port()),
        tls_cert=certificate,
        tls_key=key,
    )
    supervisor = Supervisor(SystemClock(), lambda: None)
    async with listening(api, faces, server_tls(api), supervisor, open_connections(api)):
        yield f"https://{api.rest_listen}"


def run_as_server(main: Coroutine[Any, Any, None]) -> None:
    """On the event loop that `lattice-server` has: the fast one, where there is one."""
    pauses = LoopPauses()
    new_loop = getattr(pauses, "new_fast_loop", pauses.new_loop)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)
