"""The draining of failed nodes, as the site's configuration has it."""

from __future__ import annotations

from dataclasses import asdict

from lattice.features.nodes.service.draining import DrainTerms, FailedNodeDrain
from lattice.server.figures import Figures
from lattice.server.sections import NodeAgentSection


def show_drains(figures: Figures, drain: FailedNodeDrain) -> None:
    """Put its counts among the server's figures."""
    figures.watch(lambda: {f"failed_nodes_{k}": v for k, v in asdict(drain.counts).items()})


def terms_of(section: NodeAgentSection) -> DrainTerms | None:
    """The configuration's word; None: the site drains nodes itself."""
    if not section.drain_failed:
        return None
    return DrainTerms(after_s=section.drain_after_s, most_per_hour=section.drain_most_per_hour)
