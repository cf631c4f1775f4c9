"""A site with claims in memory: one state, one Slurm, and as many servers as a test needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice.access.actor import Actor, Role
from lattice.domain.audit import AuditEntry, AuditEvent, SensitiveAuditRequired, entry_of
from lattice.domain.claim import CLAIMS, ClaimSet
from lattice.domain.node import Node, NodeState
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.claims.model import ClaimAnswer, ClaimOrder, ReleaseOrder
from lattice.features.claims.service.claims import ClaimService
from lattice.features.claims.service.ledger import ClaimBook, ClaimLedger, claims_in
from lattice.features.claims.service.reconciliation import ClaimReconciler
from lattice.features.claims.service.transitions import ClaimTransitions
from tests.fakes.claimed_nodes import FaultyReservations
from tests.fakes.cluster import ACCOUNTS
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.manual_clock import ManualClock

VIEWS = Vclusters(
    (
        Vcluster("batch", VclusterKind.HPC, "batch"),
        Vcluster("clinic", VclusterKind.SENSITIVE, "clinic"),
    )
)


def claimer(user: str, role: Role = Role.CLAIMING_USER, tenant: str = "") -> Actor:
    return Actor(sub=f"sub-{user}", user=user, role=role, tenant=tenant)


ALICE, BOB, ADA = claimer("alice"), claimer("bob"), claimer("ada", Role.SYSTEM_ADMIN)


class Trail:
    """The audit log: required entries and noted ones, each event once."""

    def __init__(self) -> None:
        self.is_away = False
        self.events: dict[str, AuditEvent] = {}

    async def require(self, event: AuditEvent) -> AuditEntry:
        if self.is_away:
            raise SensitiveAuditRequired("etcd does not answer")
        self.events.setdefault(event.event, event)
        return entry_of(event, len(self.events), ManualClock().now())

    def note(self, event: AuditEvent) -> None:
        self.events.setdefault(event.event, event)

    @property
    def acts(self) -> list[tuple[str, str, str]]:
        """Act, outcome and user of each entry."""
        return [(each.act.value, each.outcome.value, each.user) for each in self.events.values()]


@dataclass
class ClaimServer:
    """One server's part of the feature."""

    ledger: ClaimLedger
    service: ClaimService
    reconciler: ClaimReconciler
    book: ClaimBook

    async def claim(self, actor: Actor, nodes: str, reason: str = "") -> ClaimAnswer:
        return await self.service.claim(actor, ClaimOrder(nodes=nodes, reason=reason))

    async def release(self, actor: Actor, target: str) -> ClaimAnswer:
        return await self.service.release(actor, ReleaseOrder(target=target))


class ClaimSite:
    """One state, one Slurm, one audit log."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        ready = Node(name="n1", state=NodeState.READY, slurm_state="idle", partitions=("clinic",))
        self.scheduler.nodes = [
            *(replace(ready, name=f"n{number}") for number in range(1, 9)),
            replace(ready, name="b1", partitions=("batch",)),
        ]
        users = ("alice", "bob", "carol", *(f"user{number}" for number in range(100)))
        self.slurm = FaultyReservations((each.name for each in self.scheduler.nodes), users)
        self.trail = Trail()
        self.views = Vclusters(VIEWS.views)

    def server(self, state: InMemoryStateStore | None = None) -> ClaimServer:
        """A server that has just started."""
        state = state or self.state.another()
        ledger = ClaimLedger(state)
        transitions = ClaimTransitions(ledger, self.slurm, self.trail, self.clock)
        book = ClaimBook(InMemoryStateView(self.state, CLAIMS))
        sensitive = SensitiveWork(self.views, book)
        service = ClaimService(
            ledger, transitions, self.trail, self.scheduler, sensitive, self.clock, self
        )
        reconciler = ClaimReconciler(
            ledger, transitions, self.slurm, state, self.clock, lambda: True
        )
        return ClaimServer(ledger, service, reconciler, book)

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        """The journal: its log does not matter here."""

    @property
    def claims(self) -> ClaimSet:
        """The records as they are now."""
        return claims_in(self.state.space.entries)

    @property
    def reserved(self) -> dict[str, tuple[str, ...]]:
        """What Slurm has: user and nodes."""
        return {each.user: each.nodes for each in self.slurm.made.values()}

    @property
    def agrees(self) -> bool:
        """True if each claim has its reservation, and each reservation its claim."""
        held = {each.reservation for each in self.claims.held}
        return held == set(self.slurm.made.values())
