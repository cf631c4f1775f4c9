"""Which allocations are sensitive work, and whether they run where they must. Pure.

Sensitive is what runs in a vCluster of that kind. It must run on nodes that its owner has claimed.
"""

from __future__ import annotations

from lattice.domain.allocation import Allocation
from lattice.domain.claim import Claims, NoClaims
from lattice.domain.vcluster import VclusterKind, Vclusters


class SensitiveWork:
    """Answers by the views and claims of now: both change at run time."""

    def __init__(self, views: Vclusters | None = None, claims: Claims | None = None) -> None:
        self._views = views or Vclusters()
        self._claims = claims or NoClaims()

    @property
    def is_possible(self) -> bool:
        """False at a site without a vCluster for sensitive work."""
        return bool(self.partitions)

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions of all vClusters for sensitive work."""
        return frozenset(
            each.partition for each in self._views.views if each.kind is VclusterKind.SENSITIVE
        )

    def covers(self, allocation: Allocation) -> bool:
        return self._views.kind_of(allocation.vcluster) is VclusterKind.SENSITIVE

    def fault_of(self, allocation: Allocation) -> str:
        """Why a sensitive allocation is not served: it ran on nodes that its owner had not claimed.

        Empty for all others. Raises `Unavailable` before claims were first read.
        """
        return self._claims.claims().fault_of(allocation) if self.covers(allocation) else ""
