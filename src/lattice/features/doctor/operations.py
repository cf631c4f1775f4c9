"""The operation of the feature and the function that makes its call. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import EmptyRequest
from lattice.features.doctor.model import Examination

EXAMINE = Operation(
    rpc="lattice.v1.DoctorService/Examine",
    method="GET",
    path="/admin/doctor",
    request=EmptyRequest,
    answer=Examination,
    # Its parts have deadlines of their own, and a client waits longer than all of them.
    timeout_s=20.0,
)


def examine() -> Call[Examination]:
    """Examine the service: each check with its evidence and what to do."""
    return EXAMINE.call(EmptyRequest())


SDK: Mapping[str, Callable[..., object]] = {"examine": examine}
"""Method names of the SDK, and the functions that build their calls."""
