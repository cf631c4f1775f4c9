"""The operation of the feature, and the function that builds calls of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import AllocationRequest
from lattice.features.timeline.model import Timeline

GET_TIMELINE = Operation(
    rpc="lattice.v1.TimelineService/GetTimeline",
    method="GET",
    path="/allocations/{id}/timeline",
    request=AllocationRequest,
    answer=Timeline,
    # The metric store reads whole runs.
    timeout_s=60.0,
)


def get_timeline(reference: str) -> Call[Timeline]:
    """Get what happened to an allocation, and what was measured, on one axis of time."""
    return GET_TIMELINE.call(AllocationRequest(id=reference))


SDK: Mapping[str, Callable[..., object]] = {
    "timeline": get_timeline,
}
"""Method names of the SDK, and the functions that build their calls."""
