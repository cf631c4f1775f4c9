"""The made-up cluster of `just soak scale`: which job runs where, and who owns it, by formula.

Every process works the plan out again from three numbers, so that none is handed a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle

from bench.simulated_nodes import node_names

USERS = 500
PROJECTS = 20
LARGEST = 1000
_LARGEST_SHARE = 4
"""The largest job has a quarter of the nodes at most."""
_WIDTHS = (1, 1, 2, 1, 1, 4, 1, 1, 8, 1, 2, 1, 16, 1, 1, 4, 1, 2, 1, 1, 64)
_WIDEST_EVERY = 5
"""Of the rounds of widths, one in so many has its widest job."""
_SHARED = 2
"""Jobs that share a node with the one that is followed."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that runs."""

    id: int
    nodes: tuple[str, ...]

    @property
    def owner(self) -> str:
        return owner_of(self.id)


def owner_of(job_id: int) -> str:
    return f"user{job_id % USERS:03d}"


def project_of(job_id: int) -> str:
    """That of its owner."""
    return f"project{job_id % USERS % PROJECTS:02d}"


@dataclass(frozen=True)
class Plan:
    """Everything follows from how many nodes and allocations there are, and when all began."""

    nodes: int
    allocations: int
    began: int

    @cached_property
    def names(self) -> Sequence[str]:
        return node_names(self.nodes, digits=5)

    @cached_property
    def jobs(self) -> Sequence[PlannedJob]:
        """Those that can be followed: each node has one. The first is the largest."""
        largest = min(LARGEST, self.nodes // _LARGEST_SHARE)
        found = [PlannedJob(1, tuple(self.names[:largest]))]
        begin, turn = largest, 0
        for width in cycle(_WIDTHS):
            if begin >= self.nodes:
                return found
            turn += 1
            if width == max(_WIDTHS) and turn // len(_WIDTHS) % _WIDEST_EVERY:
                continue
            found.append(PlannedJob(len(found) + 1, tuple(self.names[begin : begin + width])))
            begin += width
        raise AssertionError("a cycle ends never")

    @cached_property
    def of_node(self) -> dict[str, PlannedJob]:
        return {node: job for job in self.jobs for node in job.nodes}

    def nodes_of(self, job_id: int) -> tuple[str, ...]:
        """Of any allocation; none if it waits."""
        if job_id <= len(self.jobs):
            return self.jobs[job_id - 1].nodes
        shared = job_id - len(self.jobs) - 1
        return (self.names[shared % self.nodes],) if shared < _SHARED * self.nodes else ()
