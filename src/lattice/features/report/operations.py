"""The operation of the feature, and the function that builds calls of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import Attempt, Reference
from lattice.features.report.model import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """Names an attempt of an allocation; 0 is the newest that has started."""

    id: Reference
    attempt: Attempt = 0


GET_REPORT = Operation(
    rpc="lattice.v1.ReportService/GetReport",
    method="GET",
    path="/allocations/{id}/report",
    request=ReportRequest,
    answer=Report,
    # The metric store reads a whole run.
    timeout_s=60.0,
)


def get_report(reference: str, *, attempt: int = 0) -> Call[Report]:
    """Get what an attempt requested and used; 0 is the newest that has started."""
    return GET_REPORT.call(ReportRequest(id=reference, attempt=attempt))


SDK: Mapping[str, Callable[..., object]] = {
    "report": get_report,
}
"""Method names of the SDK, and the functions that build their calls."""
