"""The operations of the feature and the functions that make their calls. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import AllocationRequest
from lattice.domain.sbatch import has_comment
from lattice.domain.submission import LARGEST_SCRIPT_BYTES
from lattice.features.submit.model import CancelAnswer, SubmitAnswer, SubmitRequest

_SERVICE = "lattice.v1.SubmitService/"
# Longer than the gate's limit; a call with a key also waits for an earlier one.
_PATIENCE_S = 60.0


SUBMIT_ALLOCATION = Operation(
    rpc=_SERVICE + "SubmitAllocation",
    method="POST",
    path="/allocations",
    request=SubmitRequest,
    answer=SubmitAnswer,
    timeout_s=_PATIENCE_S,
    # JSON writes some characters as two or more.
    largest_body_bytes=2 * LARGEST_SCRIPT_BYTES + 256 * 1024,
)
CANCEL_ALLOCATION = Operation(
    rpc=_SERVICE + "CancelAllocation",
    method="POST",
    path="/allocations/{id}/cancel",
    request=AllocationRequest,
    answer=CancelAnswer,
    timeout_s=_PATIENCE_S,
    idempotent=True,
)


def submit_allocation(request: SubmitRequest, *, idempotency_key: str = "") -> Call[SubmitAnswer]:
    """Submit a script; with a key at most once.

    The job's comment has the key, so a job with its own comment gets no key.
    """
    if idempotency_key:
        request = replace(request, idempotency_key=idempotency_key)
    takes_key = not has_comment(request.options, request.script)
    return SUBMIT_ALLOCATION.call(request)._replace(takes_key=takes_key)


def cancel_allocation(reference: str) -> Call[CancelAnswer]:
    """Cancel one allocation."""
    return CANCEL_ALLOCATION.call(AllocationRequest(id=reference))


SDK: Mapping[str, Callable[..., object]] = {
    "submit": submit_allocation,
    "cancel": cancel_allocation,
}
"""The functions of the SDK by name."""
