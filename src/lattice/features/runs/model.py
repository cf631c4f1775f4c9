"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.allocation import Allocation
from lattice.domain.checkpoint_lineage import RunLineage
from lattice.domain.source import Source
from lattice.domain.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """Training runs, newest first. Without a source the site has no run store."""

    runs: tuple[TrainingRun, ...]
    sources: tuple[Source, ...]
    allocation: Allocation | None = None
    """The one that was asked about: what runs in other stores are compared with."""
    lineage: RunLineage | None = None
    """Set if it was asked for."""
