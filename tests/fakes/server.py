"""A whole server in memory: the real composition around a scheduler that isn't Slurm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joserfc import jwt
from joserfc.jwk import OctKey

from lattice.access.actor import ClaimNames
from lattice.access.grants import GrantSigner
from lattice.adapters.oidc.verify import HmacVerifier
from lattice.base.clock import SystemClock
from lattice.domain.audit import AuditTrail, NoTrail
from lattice.domain.claim import CLAIMS, Claims
from lattice.domain.cluster_record import CLUSTER_KEY
from lattice.domain.metricstore import MetricStore
from lattice.domain.node_snapshot import FactSource, NodeSnapshots
from lattice.domain.objects import ObjectStore
from lattice.domain.stream import NodeStreams
from lattice.domain.training_run import RunStore
from lattice.domain.vcluster import Vclusters
from lattice.features.agents import wiring as agents_wiring
from lattice.features.allocations import wiring as allocations
from lattice.features.audit import wiring as audit_wiring
from lattice.features.audit.section import AuditSection
from lattice.features.checks import wiring as checks_wiring
from lattice.features.claims import wiring as claims_wiring
from lattice.features.claims.service.ledger import ClaimBook
from lattice.features.compare import wiring as compare
from lattice.features.diag import wiring as diag
from lattice.features.diag.section import DiagSection
from lattice.features.doctor import wiring as doctor
from lattice.features.health import wiring as health
from lattice.features.identity import wiring as identity
from lattice.features.identity.model import AuthDiscovery
from lattice.features.link import wiring as link
from lattice.features.locks import wiring as locks_wiring
from lattice.features.locks.service import LOCKS, LockBook
from lattice.features.logs import wiring as logs
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.job_text import JobTextReader
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_service import LogService
from lattice.features.monitoring import wiring as monitoring
from lattice.features.monitoring.service.ended import ENDED
from lattice.features.nodes import wiring as nodes_wiring
from lattice.features.prometheus import wiring as prometheus
from lattice.features.report import wiring as report
from lattice.features.runs import wiring as runs
from lattice.features.sharing import wiring as sharing_wiring
from lattice.features.submit import wiring as submit
from lattice.features.submit.section import UenvSection
from lattice.features.telemetry import wiring as telemetry
from lattice.features.telemetry.service.modes import MODES
from lattice.features.tenants import wiring as tenants
from lattice.features.timeline import wiring as timeline
from lattice.features.top import wiring as top
from lattice.features.watch import wiring as watch
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.foundation import NodeAccess
from lattice.foundation.wiring import Wiring
from lattice.server.config.engine_sections import TelemetrySection
from lattice.server.listeners.composition import Faces, compose
from lattice.server.listeners.rest_app import Description
from lattice.server.measurement import agreed_modes
from tests.fakes.agent_site import agent_parts
from tests.fakes.attached import AttachReplica
from tests.fakes.audit import audit_log
from tests.fakes.echoing_nodes import EchoingNodes
from tests.fakes.expiries import FixedExpiries
from tests.fakes.foundation import in_memory_foundation
from tests.fakes.held_terminals import HeldTerminals
from tests.fakes.in_memory_backups import in_memory_backups
from tests.fakes.in_memory_facts import InMemoryFacts, InMemoryStacks
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_reservations import InMemoryReservations
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.inspection import InMemoryInspection
from tests.fakes.node_looks import InMemoryNodeLooks
from tests.fakes.sharing import sharing_parts

SECRET = b"a secret of the tests, long enough to be one"
AUDIENCE = "lattice"


def composed(
    scheduler: InMemoryScheduler | None = None,
    *,
    nodes: NodeStreams | None = None,
    signer: GrantSigner | None = None,
    terminals: HeldTerminals | None = None,
    origins: tuple[str, ...] = (),
    looks: NodeSnapshots | None = None,
    metrics: MetricStore | None = None,
    facts: FactSource | None = None,
    objects: ObjectStore | None = None,
    views: Vclusters | None = None,
    audit: AuditTrail | None = None,
    claims: Claims | None = None,
    run_store: RunStore | None = None,
) -> Faces:
    """Both faces, behind the real guard; tokens are signed with `SECRET`.

    Logs are fed by `nodes`, which believe grants of the `signer`; `terminals` are those of jobs,
    which pages of `origins` may open; `metrics` is the store that is asked for measurements,
    `facts` are those of nodes, and `objects` has the logs of ended jobs. `views` name what is
    sensitive, `claims` where it may run, and `audit` records acts on it. `run_store` has runs of
    trainings.
    """
    clock = SystemClock()
    scheduler = scheduler or InMemoryScheduler(clock)
    state = InMemoryStateStore(clock)
    agents = agent_parts(clock, state)
    sharing = sharing_parts(state)
    modes = agreed_modes(
        scheduler, state, clock, TelemetrySection(), InMemoryStateView(state, MODES)
    )
    access = NodeAccess(
        streams=EchoingNodes("n1"),
        signer=agents.signer,
        looks=looks or InMemoryNodeLooks(),
        modes=modes.of,
        attempts=AttemptFinder(scheduler, clock),
    )
    locks = LockBook(state, InMemoryStateView(state, LOCKS), clock)
    base = in_memory_foundation(
        clock,
        scheduler=scheduler,
        state=state,
        sharing=sharing,
        locks=locks,
        metrics=metrics or InMemoryMetricStore(),
        nodes=access,
        views=views or Vclusters(),
        audit=audit or NoTrail(),
        claims=claims or ClaimBook(InMemoryStateView(state, CLAIMS)),
        reservations=InMemoryReservations(),
        run_store=run_store,
    )
    unmeasured = replace(base, metrics=None)
    held = terminals or HeldTerminals(clock)
    replica = AttachReplica(
        "r1",
        state,
        scheduler,
        held,
        held.signer,
        finder=base.finder,
        acts=base.sensitive_acts,
    )
    feeds = Feeds(
        nodes or EchoingNodes(), signer or agents.signer, clock, AttemptFinder(scheduler, clock).of
    )
    log = audit_log(state, clock, agents.signer)
    base.journal.record_in(log)
    archive = Archive(objects or InMemoryObjectStore(clock))
    reading = LogService(scheduler, base.output, archive, feeds, clock)
    book, texts = checks_wiring.open_book(base), JobTextReader()
    texts.service = reading
    wirings = (
        allocations.wire(base),
        submit.wire(base, UenvSection()),
        nodes_wiring.wire(base, warnings=book.warnings),
        tenants.wire(base),
        identity.wire(base, AuthDiscovery(idp_url="", client_id=AUDIENCE, issuer="")),
        health.wire(
            base,
            InMemoryStateView(state, CLUSTER_KEY),
            description=Description(lambda: faces.routes).text,
        ),
        doctor.wire(base, InMemoryInspection()),
        monitoring.wire(base, InMemoryStateView(state, ENDED), FixedExpiries()),
        in_memory_backups(base),
        agents_wiring.wire(agents.enrolment, agents.trust, base.journal),
        link.wire(base, access),
        Wiring(bindings=logs.bindings(reading), offer=logs.raw_logs(reading)),
        checks_wiring.wire(base, book, texts),
        audit_wiring.wire(base, agents.signer, log, AuditSection(), InMemoryObjectStore(clock)),
        sharing_wiring.wire(base, sharing.shares, sharing.terms),
        locks_wiring.wire(base, locks),
        claims_wiring.wire(base, InMemoryReservations()),
        replica.wiring(*origins),
        telemetry.wire(base, modes),
        watch.wire(base, access),
        top.wire(base, access),
        prometheus.wire(base),
        report.wire(unmeasured),
        compare.wire(base),
        runs.wire(base),
        timeline.wire(unmeasured),
        diag.wire(
            base if metrics else unmeasured,
            access,
            DiagSection(),
            facts or InMemoryFacts(),
            InMemoryStacks(),
        ),
    )
    faces = compose(
        base,
        wirings,
        HmacVerifier(SECRET, audience=AUDIENCE, clock=clock),
        ClaimNames(service_accounts={"robot": "alice"}),
        locks.next_change,
    )
    return faces


def token(sub: str, **claims: Any) -> str:
    """A token the server takes for genuine."""
    now = int(SystemClock().now().timestamp())
    body = {"sub": sub, "aud": AUDIENCE, "exp": now + 600, "iat": now, **claims}
    return jwt.encode({"alg": "HS256"}, body, OctKey.import_key(SECRET))


def bearer(sub: str, **claims: Any) -> dict[str, str]:
    """The header that carries it."""
    return {"Authorization": f"Bearer {token(sub, **claims)}"}
