"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from lattice.base.call import Call
from lattice.base.operation import FieldRule, Operation
from lattice.domain.request_fields import AllocationRequest, Reference
from lattice.features.diag.model import Area, Diagnosis, StackPicture, areas_named

_SERVICE = "lattice.v1.DiagnosticsService/"
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagRequest:
    """Names the allocation and areas; no areas stands for all of them."""

    id: Reference
    areas: Annotated[tuple[str, ...], FieldRule(longest=100, commas=True)] = ()


def _page(area: Area) -> Operation[AllocationRequest, Diagnosis]:
    return Operation(
        rpc=_SERVICE + "GetDiagnostics",
        method="GET",
        path=f"/allocations/{{id}}/diagnostics/{area.value}",
        request=AllocationRequest,
        answer=Diagnosis,
        timeout_s=_TIMEOUT_S,
        rest_id=f"Get{area.value.capitalize()}Diagnostics",
    )


GET_DIAGNOSTICS = Operation(
    rpc=_SERVICE + "GetDiagnostics",
    method="GET",
    path="/allocations/{id}/diagnostics",
    request=DiagRequest,
    answer=Diagnosis,
    timeout_s=_TIMEOUT_S,
)
PAGES = {area: _page(area) for area in (Area.NETWORK, Area.STORAGE, Area.GPU)}
"""The areas with a page of their own, and its operation."""
GET_STACKS = Operation(
    rpc=_SERVICE + "GetStacks",
    method="GET",
    path="/allocations/{id}/stacks",
    request=AllocationRequest,
    answer=StackPicture,
    timeout_s=30.0,
)


def diagnose(reference: str, *, areas: Sequence[Area | str] = ()) -> Call[Diagnosis]:
    """Diagnose a running job, in some areas or in all."""
    chosen = areas_named(areas)
    if len(chosen) == 1 and chosen[0] in PAGES:
        return PAGES[chosen[0]].call(AllocationRequest(id=reference))
    names = tuple(each.value for each in chosen)
    return GET_DIAGNOSTICS.call(DiagRequest(id=reference, areas=names))


def take_stacks(reference: str) -> Call[StackPicture]:
    """Get the stacks of every rank of the caller's own job."""
    return GET_STACKS.call(AllocationRequest(id=reference))


SDK: Mapping[str, Callable[..., object]] = {
    "diagnose": diagnose,
    "stacks": take_stacks,
}
"""Method names of the SDK, and the functions that build their calls."""
