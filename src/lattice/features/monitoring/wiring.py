"""Wires the feature: its loops, and their values in the server's own metrics."""

from __future__ import annotations

from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.state import StateView
from lattice.features.monitoring.model import Expiries
from lattice.features.monitoring.service.cluster import ClusterCounts
from lattice.features.monitoring.service.ended import EndedJobs
from lattice.features.monitoring.service.expiry import ExpiryWatch
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def wire(
    foundation: Foundation,
    ended: StateView,
    expiries: Expiries,
    *,
    names: bool = False,
    loops: tuple[Loop, ...] = (),
) -> Wiring:
    """Return the feature's part of the server.

    `ended` is a view of the keys of ended jobs, and `loops` update it. With `names` accounts, users
    and projects are shown.
    """
    cluster = ClusterCounts(
        foundation.scheduler, foundation.presences, foundation.claims, names=names
    )
    counts = EndedJobs(foundation.scheduler, foundation.state, ended, foundation.clock, names=names)
    expiry = ExpiryWatch(expiries)
    for each in (cluster, counts, expiry):
        foundation.own_metrics.read(each.values)
    return Wiring(
        loops=(
            *loops,
            Loop("cluster counts", cluster.run, OnFailure.RESTART),
            Loop("ended jobs", counts.run, OnFailure.RESTART),
            Loop("certificate expiry", expiry.run, OnFailure.RESTART),
        )
    )
