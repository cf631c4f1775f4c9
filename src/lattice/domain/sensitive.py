"""Which allocations are sensitive work: those of a vCluster of that kind. Pure."""

from __future__ import annotations

from lattice.domain.allocation import Allocation
from lattice.domain.vcluster import VclusterKind, Vclusters


class SensitiveWork:
    """Answers by the views of now: a site can change them at run time."""

    def __init__(self, views: Vclusters | None = None) -> None:
        self._views = views or Vclusters()

    @property
    def is_possible(self) -> bool:
        """False at a site without a vCluster for sensitive work."""
        return any(each.kind is VclusterKind.SENSITIVE for each in self._views.views)

    def covers(self, allocation: Allocation) -> bool:
        return self._views.kind_of(allocation.vcluster) is VclusterKind.SENSITIVE
