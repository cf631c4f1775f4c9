"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Request

from lattice.access.actor import Actor
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.domain.submission import LARGEST_SCRIPT_BYTES
from lattice.features.submit.model import (
    LONGEST_KEY,
    CancelAnswer,
    SubmitAnswer,
    SubmitRequest,
)
from lattice.features.submit.service.submitting import SubmitService
from lattice.wire.guard import GuardedRoutes

# JSON writes some characters with two or more.
_LARGEST_BODY_BYTES = 2 * LARGEST_SCRIPT_BYTES + 256 * 1024


def offer(routes: GuardedRoutes[Actor], service: SubmitService) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.SubmitService/"

    @routes.post(
        "/allocations",
        rpc=rpc + "SubmitAllocation",
        body=SubmitRequest,
        response_model=SubmitAnswer,
    )
    async def submit_allocation(
        request: Request,
        idempotency_key: Annotated[str, Header(max_length=LONGEST_KEY)] = "",
        lattice_key_optional: Annotated[bool, Header()] = False,
        lattice_repeated: Annotated[bool, Header()] = False,
    ) -> SubmitAnswer:
        asked = await routes.body(request, SubmitRequest, _LARGEST_BODY_BYTES)
        return await service.submit(
            routes.caller(request),
            asked,
            idempotency_key,
            optional=lattice_key_optional,
            repeated=lattice_repeated,
        )

    @routes.post(
        "/allocations/{id}/cancel", rpc=rpc + "CancelAllocation", response_model=CancelAnswer
    )
    async def cancel_allocation(
        request: Request,
        id: Annotated[str, Path(pattern=REFERENCE_PATTERN)],
    ) -> CancelAnswer:
        return await service.cancel(routes.caller(request), id)
