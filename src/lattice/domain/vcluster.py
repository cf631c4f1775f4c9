"""A vCluster: a named view of a partition (and optionally a QOS) with a kind. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VclusterKind(StrEnum):
    HPC = "hpc"
    SERVICE = "service"
    INTERACTIVE = "interactive"
    SENSITIVE = "sensitive"


@dataclass(frozen=True, slots=True)
class Vcluster:
    """One view as the site configured it. An empty `qos` means any."""

    name: str
    kind: VclusterKind
    partition: str
    qos: str = ""


class Vclusters:
    """All views of a cluster. One with a QOS has priority over one without.

    Everyone who needs them shares one object, so that a site can change them at run time.
    """

    def __init__(self, views: tuple[Vcluster, ...] = ()) -> None:
        self.views = views

    def of(self, partition: str, qos: str) -> Vcluster | None:
        """The view of a job with this partition and QOS."""
        general: Vcluster | None = None
        for view in self.views:
            if view.partition != partition:
                continue
            if view.qos == qos and qos:
                return view
            if not view.qos and general is None:
                general = view
        return general

    def kind_of(self, name: str | None) -> VclusterKind | None:
        """The kind of a view by its name."""
        return next((view.kind for view in self.views if view.name == name), None)
