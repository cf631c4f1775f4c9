"""A vCluster: a named view of a partition (and optionally a QOS) with a kind. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What the view is for."""

    HPC = "hpc"
    SERVICE = "service"
    INTERACTIVE = "interactive"
    SENSITIVE = "sensitive"


@dataclass(frozen=True, slots=True)
class Vcluster:
    """One view as the site configured it. An empty `qos` means any."""

    name: str
    kind: Kind
    partition: str
    qos: str = ""


@dataclass(frozen=True, slots=True)
class Vclusters:
    """All views of a cluster; the one that names a QOS wins over the one that doesn't."""

    views: tuple[Vcluster, ...] = ()

    def of(self, partition: str, qos: str) -> Vcluster | None:
        """The view a job of this partition and QOS belongs to."""
        general: Vcluster | None = None
        for view in self.views:
            if view.partition != partition:
                continue
            if view.qos == qos and qos:
                return view
            if not view.qos and general is None:
                general = view
        return general

    def kind_of(self, name: str | None) -> Kind | None:
        """The kind of a view by its name."""
        return next((view.kind for view in self.views if view.name == name), None)
