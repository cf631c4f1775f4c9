"""A small cluster to ask about: two tenants, three projects, work of everybody's everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lattice.base.clock import Clock
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.allocation import Allocation, State
from lattice.domain.node import Node, NodeState
from tests.fakes.in_memory_scheduler import InMemoryScheduler

ACCOUNTS = AccountTree.of(
    [
        Account("physics"),
        Account("research", "physics"),
        Account("theory", "physics", frozenset({"carol"})),
        Account("biology"),
        Account("genomics", "biology"),
    ],
    {"alice": ["research"], "bob": ["genomics"], "carol": ["genomics"], "dave": ["theory"]},
)


@dataclass(frozen=True)
class Work:
    """Whose it is, and where."""

    job_id: int
    user: str
    account: str


WORK = (
    Work(1, "alice", "research"),
    Work(2, "bob", "genomics"),
    Work(3, "dave", "theory"),
    Work(4, "carol", "genomics"),
    Work(5, "alice", "theory"),
)


def allocation(job_id: int, user: str, account: str, **more: Any) -> Allocation:
    """One that runs, unless told otherwise."""
    submitted = more.pop("submitted", datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1))
    facts: dict[str, Any] = {
        "cluster": "lab",
        "id": str(job_id),
        "job_id": job_id,
        "name": f"work-{job_id}",
        "user": user,
        "account": account,
        "tenant": ACCOUNTS.tenant_of(account),
        "partition": "batch",
        "qos": "normal",
        "vcluster": "batch",
        "state": State.RUNNING,
        "submitted": submitted,
        "first_submitted": submitted,
        "started": submitted,
        "nodes": "n1",
        "node_count": 1,
    }
    return Allocation(**facts | more)


def populated(clock: Clock) -> InMemoryScheduler:
    """Each piece of work running now, and one of the same owner finished yesterday (id + 100)."""
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    scheduler.nodes = [Node(name="n1", state=NodeState.READY, slurm_state="mixed")]
    for each in WORK:
        scheduler.allocations.append(allocation(each.job_id, each.user, each.account))
        scheduler.remembered.append(
            allocation(
                each.job_id + 100,
                each.user,
                each.account,
                state=State.COMPLETED,
                ended=clock.now() - timedelta(hours=2),
            )
        )
    return scheduler
