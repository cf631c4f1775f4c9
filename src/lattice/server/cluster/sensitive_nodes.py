"""Which nodes have sensitive work: a lost link of their agents is judged later.

A node that is Down is a reason to look into it and to restart it. That would end sensitive work,
which nobody but its owner may look into, for a link that may come back.
"""

from __future__ import annotations

from collections.abc import Callable

from lattice.base.errors import Unavailable
from lattice.domain.claim import Claims
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import LiveCluster, Scheduler
from lattice.domain.sensitive import SensitiveWork


class SensitiveNodes:
    """Answers from the last reading of Slurm, and from the claims."""

    def __init__(
        self,
        scheduler: Scheduler,
        work: SensitiveWork,
        is_claimed: Callable[[str], bool] = lambda _node: False,
    ) -> None:
        """`is_claimed` may raise `Unavailable`."""
        self._scheduler = scheduler
        self._work = work
        self._is_claimed = is_claimed
        self._read: LiveCluster | None = None
        self._nodes: frozenset[str] = frozenset()

    def count_claimed(self, claims: Claims) -> None:
        """From now on claimed nodes are among them, also without a job."""
        self._is_claimed = lambda node: claims.claims().of_node(node) is not None

    def has(self, node: str) -> bool:
        """True also while it is not known at a site that has sensitive work."""
        if not self._work.is_possible:
            return False
        try:
            return self._is_claimed(node) or node in self._with_jobs()
        except Unavailable:
            return True

    def _with_jobs(self) -> frozenset[str]:
        cluster = self._scheduler.live().cluster
        if self._read is None or cluster.allocations is not self._read.allocations:
            self._read = cluster
            self._nodes = frozenset(
                node
                for each in cluster.allocations
                if each.nodes and self._work.covers(each)
                for node in _expanded(each.nodes)
            )
        return self._nodes


def _expanded(nodes: str) -> tuple[str, ...]:
    try:
        return tuple(NodeSet.parse(nodes))
    except ValueError:
        return ()
