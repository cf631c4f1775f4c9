"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lattice.base.call import Call
from lattice.base.choices import one_of
from lattice.base.operation import Operation
from lattice.domain.request_fields import AllocationRequest
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.model import Telemetry, TelemetryOrder

_SERVICE = "lattice.v1.TelemetryService/"
_PATH = "/allocations/{id}/telemetry"

GET_TELEMETRY = Operation(
    rpc=_SERVICE + "GetTelemetry",
    method="GET",
    path=_PATH,
    request=AllocationRequest,
    answer=Telemetry,
)
SET_TELEMETRY = Operation(
    rpc=_SERVICE + "SetTelemetry",
    method="PUT",
    path=_PATH,
    request=TelemetryOrder,
    answer=Telemetry,
    idempotent=True,
)


def get_telemetry(reference: str) -> Call[Telemetry]:
    """Get how often an allocation is sampled."""
    return GET_TELEMETRY.call(AllocationRequest(id=reference))


def set_telemetry(reference: str, mode: str, *, duration_s: int = 0) -> Call[Telemetry]:
    """Switch the mode from now on; a duration of 0 is half an hour for debug, else no end."""
    return SET_TELEMETRY.call(
        TelemetryOrder(id=reference, mode=one_of(Mode, mode), duration_s=duration_s)
    )


SDK: Mapping[str, Callable[..., object]] = {
    "telemetry": get_telemetry,
    "set_telemetry": set_telemetry,
}
"""Method names of the SDK, and the functions that build their calls."""
