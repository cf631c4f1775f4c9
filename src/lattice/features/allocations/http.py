"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path, Query, Request

from lattice.access.actor import Actor
from lattice.domain.allocation import REFERENCE_PATTERN, State
from lattice.features.allocations.model import (
    CURSOR_PATTERN,
    LARGEST_LIST,
    AllocationCard,
    AllocationList,
    HistoryQuery,
    ListQuery,
)
from lattice.features.allocations.service import AllocationService
from lattice.wire.guard import GuardedRoutes

_States = Annotated[list[State], Query(alias="state", max_length=32)]
_User = Annotated[str, Query(max_length=64)]
_Limit = Annotated[int, Query(ge=0, le=LARGEST_LIST)]


def offer(routes: GuardedRoutes[Actor], service: AllocationService) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.AllocationService/"

    @routes.get("/allocations", rpc=rpc + "ListAllocations", response_model=AllocationList)
    async def list_allocations(
        request: Request,
        states: _States = [],
        user: _User = "",
        all: bool = False,
        limit: _Limit = 0,
    ) -> AllocationList:
        query = ListQuery(states=frozenset(states), user=user, all=all, limit=limit)
        return await service.recent(routes.caller(request), query)

    @routes.get("/allocations/{id}", rpc=rpc + "GetAllocation", response_model=AllocationCard)
    async def get_allocation(
        request: Request,
        id: Annotated[str, Path(pattern=REFERENCE_PATTERN)],
        last_output: bool = False,
    ) -> AllocationCard:
        return await service.card(routes.caller(request), id, last_output=last_output)

    @routes.get("/history", rpc=rpc + "ListHistory", response_model=AllocationList)
    async def list_history(
        request: Request,
        states: _States = [],
        user: _User = "",
        all: bool = False,
        limit: _Limit = 0,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: Annotated[str, Query(pattern=CURSOR_PATTERN)] = "",
    ) -> AllocationList:
        query = HistoryQuery(
            states=frozenset(states),
            user=user,
            all=all,
            limit=limit,
            since=_aware(since),
            until=_aware(until),
            cursor=cursor,
        )
        return await service.history(routes.caller(request), query)


def _aware(moment: datetime | None) -> datetime | None:
    # A time without a zone is taken as UTC, as everywhere in the interface.
    return moment.replace(tzinfo=moment.tzinfo or UTC) if moment is not None else None
