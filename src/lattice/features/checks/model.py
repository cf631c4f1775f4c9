"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from lattice.base.operation import FieldRule
from lattice.domain.node_check import NodeCheck

LONGEST_SET = 16 * 1024
USUAL_WALLTIME_S = 600
LONGEST_WALLTIME_S = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Which nodes to check, and how Slurm runs the job."""

    name: Annotated[str, FieldRule(longest=LONGEST_SET)]
    """One node, or several in Slurm's notation: `n[1-3]`."""
    partition: Annotated[str, FieldRule(longest=256)] = ""
    project: Annotated[str, FieldRule(longest=256)] = ""
    walltime_s: Annotated[int, FieldRule(least=60, most=LONGEST_WALLTIME_S)] = USUAL_WALLTIME_S
    """How long the job may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksRequest:
    """Names the nodes."""

    name: Annotated[str, FieldRule(longest=LONGEST_SET)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedCheck:
    """A check that waits for its turn."""

    id: str
    job_id: int
    nodes: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCheck:
    """A check without a result so far."""

    job_id: int
    nodes: str
    by: str
    submitted: datetime
    state: str
    """Slurm's state of its job; empty if it is not known."""
    reason: str = ""
    """Why it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNode:
    """The results of one node, newest first."""

    node: str
    checks: tuple[NodeCheck, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChecks:
    """Nodes with their results, and the checks that are under way."""

    nodes: tuple[CheckedNode, ...]
    open: tuple[OpenCheck, ...] = ()
