"""Which nodes have sensitive work: a lost link of their agents is judged later.

A node that is Down is a reason to look into it and to restart it. That would end sensitive work,
which nobody but its owner may look into, for a link that may come back.
"""

from __future__ import annotations

from collections.abc import Callable

from lattice.base.errors import Unavailable
from lattice.domain.claim import Claims
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import Scheduler
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

    def count_claimed(self, claims: Claims) -> None:
        """From now on claimed nodes are among them, also without a job."""
        self._is_claimed = lambda node: claims.claims().of_node(node) is not None

    def has(self, node: str) -> bool:
        """True also while it is not known at a site that has sensitive work."""
        if not self._work.is_possible:
            return False
        try:
            return self._is_claimed(node) or self._has_job(node)
        except Unavailable:
            return True

    def _has_job(self, node: str) -> bool:
        return any(
            self._work.covers(each) and _is_on(node, each.nodes)
            for each in self._scheduler.live().cluster.on_node(node)
        )


def _is_on(node: str, nodes: str) -> bool:
    """Whether the current attempt is on the node: an earlier one may have been."""
    try:
        return bool(nodes) and node in NodeSet.parse(nodes)
    except ValueError:
        return False
