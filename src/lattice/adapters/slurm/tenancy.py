"""The tenant and the vCluster of a job. Pure.

A new instance is created when the account tree changes, so its cache is never older than the tree.
"""

from __future__ import annotations

from lattice.domain.accounts import AccountTree
from lattice.domain.vcluster import Vclusters

_REMEMBERED = 10_000


class Placing:
    """Caches tenants by account and vClusters by partition and QOS: jobs share a few of each."""

    def __init__(self, cluster: str, tree: AccountTree, vclusters: Vclusters) -> None:
        self.cluster = cluster
        self._tree = tree
        self._vclusters = vclusters
        self._tenants: dict[str, str] = {}
        self._views: dict[tuple[str, str], str | None] = {}

    def tenant(self, account: str) -> str:
        """The tenant of an account; empty if the tree does not have it."""
        found = self._tenants.get(account)
        if found is None:
            if len(self._tenants) >= _REMEMBERED:
                self._tenants.clear()
            found = self._tenants[account] = self._tree.tenant_of(account)
        return found

    def vcluster(self, partitions: str, qos: str) -> str | None:
        """The view of the first partition that has one: a waiting job may name several."""
        key = (partitions, qos)
        if key not in self._views:
            if len(self._views) >= _REMEMBERED:
                self._views.clear()
            views = (self._vclusters.of(each, qos) for each in partitions.split(","))
            self._views[key] = next((view.name for view in views if view), None)
        return self._views[key]
