"""The feature over REST. The route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request

from lattice.access.actor import Actor
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.features.report.model import Report
from lattice.features.report.service.reporting import ReportService
from lattice.wire.guard import GuardedRoutes


def offer(routes: GuardedRoutes[Actor], service: ReportService) -> None:
    """Put the feature's route among the server's."""

    @routes.get(
        "/allocations/{id}/report",
        rpc="lattice.v1.ReportService/GetReport",
        response_model=Report,
    )
    async def get_report(
        request: Request,
        id: Annotated[str, Path(pattern=REFERENCE_PATTERN)],
        attempt: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> Report:
        return await service.report(routes.caller(request), id, attempt)
