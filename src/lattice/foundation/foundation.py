"""The parts of a server that features share. Each is a port or a plain tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.current_actor import current_actor
from lattice.access.grants import GrantSigner
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputAccess
from lattice.access.permission import Permission
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.caller_address import caller_address
from lattice.base.clock import Clock
from lattice.base.supervisor import Supervisor
from lattice.domain.administration import Administration
from lattice.domain.audit import AuditTrail, NoTrail
from lattice.domain.claim import Claims, NoClaims
from lattice.domain.last_output import LastOutputs
from lattice.domain.lock import Locks
from lattice.domain.metricstore import MetricStore
from lattice.domain.node_snapshot import NodeSnapshots
from lattice.domain.objects import ObjectStore
from lattice.domain.operation import NodeOperator
from lattice.domain.outputs import JobFiles
from lattice.domain.presence import Presences
from lattice.domain.reservation import Reservations
from lattice.domain.runsummary import Accounting
from lattice.domain.scheduler import Scheduler
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.sharing import ReadNotes, Shares
from lattice.domain.site_keys import SiteKeys
from lattice.domain.state import StateStore
from lattice.domain.stream import NodeStreams
from lattice.domain.submission import SubmitGate
from lattice.domain.telemetry import ModeOf
from lattice.domain.tenants import TenantAccounts
from lattice.domain.training_run import RunStore
from lattice.domain.vcluster import Vclusters
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.audited_acts import audit_event
from lattice.foundation.data_keys import DataKeys
from lattice.foundation.own_metrics import OwnMetrics
from lattice.foundation.run_finder import TrainingRunFinder

_DEGRADED = "control plane degraded: the agreed state does not answer"


class LoggedJournal:
    """The reason of a refusal is for the operator only, never for the caller."""

    def __init__(self, log: structlog.stdlib.BoundLogger, figures: OwnMetrics) -> None:
        self._log = log
        self._figures = figures
        self._trail: AuditTrail = NoTrail()

    def record_in(self, trail: AuditTrail) -> None:
        """Also record acts in the audit log from now on, without waiting for it."""
        self._trail = trail

    def admitted(self, rpc: str) -> None:
        self._figures.calls.labels(rpc, "admitted").inc()

    def refused(self, rpc: str, sub: str, reason: str) -> None:
        self._figures.calls.labels(rpc, "refused").inc()
        self._log.warning("access refused", rpc=rpc, sub=sub, reason=reason)

    def acted(
        self, act: str, target: str, sub: str, detail: str, *, owner: str = "", tenant: str = ""
    ) -> None:
        """Record an act, or an attempt at one, on the cluster."""
        self._log.info("act", act=act, target=target, sub=sub, detail=detail)
        event = audit_event(
            act,
            target,
            sub,
            detail,
            actor=current_actor(),
            address=caller_address(),
            owner=owner,
            tenant=tenant,
        )
        if event is not None:
            self._trail.note(event)

    def finished(self, rpc: str, code: str, seconds: float) -> None:
        """Count a gRPC call, with how long it took."""
        self._figures.grpc_seconds.labels(rpc, code).observe(seconds)

    def defect(self, rpc: str, error: BaseException) -> None:
        self._figures.calls.labels(rpc, "defect").inc()
        self._log.error("defect", rpc=rpc, exc_info=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """How nodes are reached. Missing without an identity that agents can trust."""

    streams: NodeStreams
    signer: GrantSigner
    """Signs the grants that nodes require."""
    looks: NodeSnapshots
    """The current measurements of nodes."""
    modes: ModeOf
    """How often an allocation is sampled."""
    attempts: AttemptFinder


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """What features share."""

    clock: Clock
    log: structlog.stdlib.BoundLogger
    own_metrics: OwnMetrics
    supervisor: Supervisor
    journal: LoggedJournal
    replica: str
    """The id of this server among the replicas."""
    replicas: Callable[[], tuple[str, ...]]
    """The ids of the servers that are up."""
    scheduler: Scheduler
    operator: NodeOperator
    tenants: TenantAccounts
    administration: Administration
    """What the site allows to change in the scheduler."""
    accounting: Accounting
    job_files: JobFiles
    views: Vclusters
    state: StateStore
    signed_state: StateStore
    """The same state; its values are verified as written by a server."""
    shares: Shares
    reads: ReadNotes
    locks: Locks
    audit: AuditTrail = field(default_factory=NoTrail)
    """Where sensitive acts are recorded before they happen."""
    claims: Claims = field(default_factory=NoClaims)
    """Which nodes run the sensitive work of whom."""
    reservations: Reservations | None = None
    """None: no nodes can be claimed."""
    limits: CallerLimits
    presences: Presences
    gate: SubmitGate | None = None
    """None: nothing can be submitted or cancelled."""
    objects: ObjectStore | None = None
    """None: nothing is stored."""
    sensitive_objects: ObjectStore | None = None
    """The bucket of sensitive work. None: the site has none."""
    site_keys: SiteKeys | None = None
    """They wrap the data keys of sensitive work. None: the site has none."""
    data_keys: DataKeys | None = None
    """Of sensitive allocations. None: the site has no keys that could wrap them."""
    metrics: MetricStore | None = None
    """None: no measurement is stored."""
    nodes: NodeAccess | None = None
    """None: no agents are served."""
    last_outputs: LastOutputs | None = None
    run_store: RunStore | None = None
    """Where trainings log their runs. None: the site has named none."""
    runs: TrainingRunFinder = field(init=False)
    sensitive: SensitiveWork = field(init=False)
    sensitive_acts: SensitiveActs = field(init=False)
    finder: AllocationFinder = field(init=False)
    output: OutputAccess = field(init=False)
    measurements: OutputAccess = field(init=False)

    def __post_init__(self) -> None:
        sensitive = SensitiveWork(self.views, self.claims)
        acts = SensitiveActs(sensitive, self.audit)
        finder = AllocationFinder(self.scheduler, self.clock, self.shares, sensitive, acts)

        def access(permission: Permission) -> OutputAccess:
            return OutputAccess(finder, self.reads, self.clock, permission, acts)

        for name, part in (
            ("sensitive", sensitive),
            ("sensitive_acts", acts),
            ("finder", finder),
            ("runs", TrainingRunFinder(self.clock, self.run_store)),
            ("output", access(Permission.READ_OUTPUT)),
            ("measurements", access(Permission.READ_MEASUREMENTS)),
        ):
            object.__setattr__(self, name, part)

    def degraded(self) -> str:
        """A warning for callers while the agreed state does not answer, else empty."""
        return "" if self.shares.source.ok else _DEGRADED
