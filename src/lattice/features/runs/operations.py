"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from lattice.base.call import Call
from lattice.base.operation import FieldRule, Operation
from lattice.domain.request_fields import Reference
from lattice.domain.training_run import LONGEST_NAME
from lattice.features.runs.model import RunList

_SERVICE = "lattice.v1.RunService/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRunsRequest:
    """Names the allocation. With `lineage` the checkpoints of its runs are followed."""

    id: Reference
    lineage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRunsRequest:
    """The name or the id of a run."""

    name: Annotated[str, FieldRule(longest=LONGEST_NAME)]


LIST_RUNS = Operation(
    rpc=_SERVICE + "ListRuns",
    method="GET",
    path="/allocations/{id}/runs",
    request=ListRunsRequest,
    answer=RunList,
    # A lineage looks up several allocations, and each may wait for slurmdbd.
    timeout_s=30.0,
)
FIND_RUNS = Operation(
    rpc=_SERVICE + "FindRuns",
    method="GET",
    path="/runs",
    request=NamedRunsRequest,
    answer=RunList,
    # It looks up several allocations, and each may wait for slurmdbd.
    timeout_s=30.0,
)


def list_runs(reference: str, *, lineage: bool = False) -> Call[RunList]:
    """List the training runs of an allocation.

    With `lineage` the checkpoints that they wrote and loaded are followed to other runs.
    """
    return LIST_RUNS.call(ListRunsRequest(id=reference, lineage=lineage))


def find_runs(name: str) -> Call[RunList]:
    """Find training runs by name or id, each with its allocation."""
    return FIND_RUNS.call(NamedRunsRequest(name=name))


SDK: Mapping[str, Callable[..., object]] = {
    "runs": list_runs,
    "find_runs": find_runs,
}
"""Method names of the SDK, and the functions that build their calls."""
