"""A whole server in memory: the real composition around a scheduler that isn't Slurm."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import structlog
from joserfc import jwt
from joserfc.jwk import OctKey

from lattice.access.actor import ClaimNames
from lattice.access.finding import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputDoor
from lattice.adapters.oidc.verify import HmacVerifier
from lattice.base.clock import SystemClock
from lattice.domain.factfinding import FactFinding
from lattice.domain.metricstore import MetricStore
from lattice.domain.nodelook import NodeLooks
from lattice.domain.stream import NodeStreams
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.identity.model import AuthDiscovery
from lattice.features.link.service.probe import ProbeService
from lattice.features.locks.service.book import LOCKS, LockBook
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.feeds import Feeds
from lattice.features.logs.service.naming import Naming
from lattice.features.logs.service.reading import LogReading
from lattice.features.prometheus.service.asking import PrometheusService
from lattice.features.report.service.measuring import RunMeter
from lattice.features.top.service.looking import TopService
from lattice.features.watch.service.watch import Sources as WatchSources
from lattice.features.watch.service.watching import Watching
from lattice.server.compare import CompareNeeds, compare_service
from lattice.server.compose import Faces, Parts, compose
from lattice.server.diag import DiagNeeds, diag_service
from lattice.server.diagsection import DiagSection
from lattice.server.figures import Figures
from lattice.server.report import ReportNeeds, report_service
from lattice.server.top import TopParts
from tests.fakes.agent_site import agent_parts
from tests.fakes.attached import AttachReplica
from tests.fakes.echoing_nodes import EchoingNodes
from tests.fakes.held_terminals import HeldTerminals
from tests.fakes.in_memory_facts import InMemoryFacts, InMemoryStacks
from tests.fakes.in_memory_gate import InMemoryGate
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_operator import InMemoryNodeOperator
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.node_looks import InMemoryNodeLooks
from tests.fakes.sharing import sharing_parts
from tests.fakes.telemetry import telemetry_parts

_Silent = structlog.make_filtering_bound_logger(logging.CRITICAL)

SECRET = b"a secret of the tests, long enough to be one"
AUDIENCE = "lattice"


def composed(
    scheduler: InMemoryScheduler | None = None,
    *,
    nodes: NodeStreams | None = None,
    signer: GrantSigner | None = None,
    terminals: HeldTerminals | None = None,
    origins: tuple[str, ...] = (),
    looks: NodeLooks | None = None,
    metrics: MetricStore | None = None,
    facts: FactFinding | None = None,
) -> Faces:
    """Both faces, behind the real guard; tokens are signed with `SECRET`.

    Logs are fed by `nodes`, which believe grants of the `signer`; `terminals` are those of jobs,
    which pages of `origins` may open; `metrics` is the store that is asked for measurements, and
    `facts` are those of nodes.
    """
    clock = SystemClock()
    scheduler = scheduler or InMemoryScheduler(clock)
    state = InMemoryStateStore(clock)
    agents = agent_parts(clock, state)
    sharing = sharing_parts(state)
    logs = LogReading(
        scheduler,
        OutputDoor(AllocationFinder(scheduler, clock, sharing.shares), sharing.notes, clock),
        Archive(InMemoryObjectStore(clock)),
        Feeds(
            nodes or EchoingNodes(),
            signer or agents.signer,
            clock,
            Naming(scheduler, clock).of,
        ),
        clock,
    )
    watch = Watching(
        WatchSources(scheduler, looks or InMemoryNodeLooks(), clock),
        OutputDoor(AllocationFinder(scheduler, clock, sharing.shares), sharing.notes, clock),
    )
    held = terminals or HeldTerminals(clock)
    attach = AttachReplica("r1", state, scheduler, held, held.signer)
    needs = ReportNeeds(
        scheduler=scheduler,
        store=None,
        accounting=None,
        objects=None,
        sharing=sharing,
        clock=clock,
    )
    report = report_service(needs, RunMeter(None, None, clock), None)
    telemetry = telemetry_parts(scheduler, state, sharing, looks)
    diag = diag_service(
        DiagNeeds(
            scheduler=scheduler,
            telemetry=replace(telemetry, store=metrics) if metrics else telemetry,
            facts=facts or InMemoryFacts(),
            stacks=InMemoryStacks(),
            sharing=sharing,
            clock=clock,
        ),
        DiagSection(),
    )
    return compose(
        Parts(
            scheduler=scheduler,
            operator=InMemoryNodeOperator(scheduler),
            verifier=HmacVerifier(SECRET, audience=AUDIENCE, clock=clock),
            claim_names=ClaimNames(service_accounts={"robot": "alice"}),
            discovery=AuthDiscovery(idp_url="", client_id=AUDIENCE, issuer=""),
            clock=clock,
            figures=Figures(),
            state=state,
            gate=InMemoryGate(scheduler),
            agents=agents,
            logs=logs,
            sharing=sharing,
            locks=LockBook(state, InMemoryStateView(state, LOCKS), clock),
            attach=attach.parts(*origins),
            telemetry=telemetry,
            diag=diag,
            watch=watch,
            report=report,
            compare=compare_service(
                CompareNeeds(
                    scheduler=scheduler,
                    store=metrics or InMemoryMetricStore(),
                    objects=None,
                    sharing=sharing,
                    clock=clock,
                )
            ),
            top=TopParts(
                top=TopService(
                    scheduler,
                    OutputDoor(
                        AllocationFinder(scheduler, clock, sharing.shares), sharing.notes, clock
                    ),
                    metrics or InMemoryMetricStore(),
                    InMemoryNodeLooks(),
                    lambda ref: ModeInForce(allocation=ref, mode=Mode.PROD, interval_s=30.0),
                    clock,
                ),
                prometheus=PrometheusService(metrics or InMemoryMetricStore(), clock),
            ),
            probe=ProbeService(EchoingNodes("n1"), agents.signer, clock, "r1"),
            log=structlog.wrap_logger(None, wrapper_class=_Silent),
        )
    )


def token(sub: str, **claims: Any) -> str:
    """A token the server takes for genuine."""
    now = int(SystemClock().now().timestamp())
    body = {"sub": sub, "aud": AUDIENCE, "exp": now + 600, "iat": now, **claims}
    return jwt.encode({"alg": "HS256"}, body, OctKey.import_key(SECRET))


def bearer(sub: str, **claims: Any) -> dict[str, str]:
    """The header that carries it."""
    return {"Authorization": f"Bearer {token(sub, **claims)}"}
