"""The port to the scheduler: what Lattice needs about work, nodes and accounts.

`live` never waits: it returns the last state read, with its age. `past` queries the accounting
store. Both return at least what the caller's scope covers. The use cases filter again, because no
engine's filter is trusted for access.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation, Reference, State
from lattice.domain.allocation_index import AllocationIndex
from lattice.domain.node import Node, Topology
from lattice.domain.source import Source


@dataclass(frozen=True, slots=True)
class Scope:
    """The allocations that a caller may see, as a filter: by owner, by account, or everything."""

    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    everything: bool = False

    @property
    def only_users(self) -> frozenset[str]:
        """The users whose jobs are all that it covers; empty if it covers others too."""
        return frozenset() if self.everything or self.accounts else self.users - {""}

    def covers(self, allocation: Allocation) -> bool:
        return (
            self.everything
            or (allocation.user in self.users and allocation.user != "")
            or (allocation.account in self.accounts and allocation.account != "")
        )


class LiveCluster:
    """One reading of the whole cluster, indexed for many callers who each see a little of it."""

    __slots__ = ("accounts", "index", "nodes", "nodes_read_at", "read_at", "topology")

    def __init__(
        self,
        *,
        read_at: datetime,
        allocations: Iterable[Allocation] | AllocationIndex = (),
        nodes: Iterable[Node] = (),
        nodes_read_at: datetime | None = None,
        topology: Topology | None = None,
        accounts: AccountTree | None = None,
    ) -> None:
        self.read_at = read_at
        self.index = (
            allocations
            if isinstance(allocations, AllocationIndex)
            else AllocationIndex().next(allocations)
        )
        self.nodes = tuple(nodes)
        self.nodes_read_at = nodes_read_at or read_at
        self.topology = topology or Topology()
        self.accounts = accounts or AccountTree()

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """All of them; the same tuple while none changes."""
        return self.index.allocations

    def confirmed(self, read_at: datetime) -> LiveCluster:
        """The same cluster, found unchanged at a later time. Copies nothing but references."""
        again = object.__new__(LiveCluster)
        for name in self.__slots__:
            setattr(again, name, getattr(self, name))
        again.read_at = read_at
        return again

    def of_job(self, job_id: int) -> tuple[Allocation, ...]:
        """Every allocation with this job id; more than one if it was reused."""
        return tuple(each for each in self.index.of_job(job_id) if each.job_id == job_id)

    def on_node(self, node: str) -> tuple[Allocation, ...]:
        """Every allocation with an attempt that runs or ran on this node."""
        return self.index.on_node(node)

    def visible(self, scope: Scope) -> Iterator[Allocation]:
        """Every allocation inside the scope, each once."""
        if scope.everything:
            yield from self.allocations
            return
        users = scope.users - {""}
        for user in users:
            yield from self.index.of_user(user)
        for account in scope.accounts:
            for allocation in self.index.of_account(account):
                if allocation.user not in users:
                    yield allocation

    def candidates(self, reference: Reference, scope: Scope) -> Iterable[Allocation]:
        """Those inside the scope among which is every one that the name may mean.

        For who sees only some it is all of these: the time must not depend on what others have.
        """
        return self.index.of_job(reference.job_id) if scope.everything else self.visible(scope)

    def named(self, reference: Reference, scope: Scope) -> Iterator[Allocation]:
        """Those inside the scope that the name may mean."""
        return (each for each in self.candidates(reference, scope) if reference.matches(each))


@dataclass(frozen=True, slots=True)
class SchedulerReading:
    """A cluster with its source and age."""

    cluster: LiveCluster
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PastQuestion:
    """Selects past allocations: inside `scope`, and of one `reference` or a period."""

    scope: Scope
    reference: Reference | None = None
    since: datetime | None = None
    until: datetime | None = None
    states: frozenset[State] = field(default_factory=frozenset)


class JobListSource(StrEnum):
    """What prints the list of jobs. `auto`: whichever costs less."""

    AUTO = "auto"
    REST = "rest"
    SQUEUE = "squeue"


class Scheduler(Protocol):
    """What runs the work. Slurm today; the fake in the tests passes the same contract suite."""

    @property
    def cluster_name(self) -> str:
        """The scheduler's name of the cluster."""

    def live(self) -> SchedulerReading:
        """The last known state, at once. Raises `Unavailable` if there never was one."""

    async def fresh(
        self, *, nodes: bool = False, accounts: bool = False, users: Collection[str] = ()
    ) -> SchedulerReading:
        """A state read after this call if that is possible soon, else the last known one.

        Use it before reporting "not found", because a job may be younger than the last reading. Use
        it after an act too, with `nodes` after one on nodes, because the caller looks next. With
        `accounts` the accounts are read again, and the jobs are not. With `users` the jobs of these
        are enough; the source's time is then true of theirs alone.
        """

    async def past(
        self, question: PastQuestion, *, patience_s: float | None = None
    ) -> tuple[Allocation, ...]:
        """From the accounting store, newest first, attempts folded into their allocation.

        Raises `Unavailable` while the store does not answer, after `patience_s` at the latest.
        """
