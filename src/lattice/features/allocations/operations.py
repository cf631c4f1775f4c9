"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lattice.base.call import Call
from lattice.base.choices import one_of
from lattice.base.operation import Operation
from lattice.domain.allocation import State
from lattice.domain.request_fields import Reference
from lattice.features.allocations.model import (
    AllocationCard,
    AllocationList,
    HistoryQuery,
    ListQuery,
)

_SERVICE = "lattice.v1.AllocationService/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRequest:
    """Names the allocation. With `last_output` the server asks its nodes when it last wrote.

    With `runs` it asks the site's run store.
    """

    id: Reference
    last_output: bool = False
    runs: bool = False


LIST_ALLOCATIONS = Operation(
    rpc=_SERVICE + "ListAllocations",
    method="GET",
    path="/allocations",
    request=ListQuery,
    answer=AllocationList,
)
GET_ALLOCATION = Operation(
    rpc=_SERVICE + "GetAllocation",
    method="GET",
    path="/allocations/{id}",
    request=CardRequest,
    answer=AllocationCard,
)
LIST_HISTORY = Operation(
    rpc=_SERVICE + "ListHistory",
    method="GET",
    path="/history",
    request=HistoryQuery,
    answer=AllocationList,
)


def list_allocations(
    *, states: tuple[str, ...] = (), user: str = "", everyone: bool = False, limit: int = 0
) -> Call[AllocationList]:
    """List unfinished allocations and those that ended within the last 24 hours."""
    return LIST_ALLOCATIONS.call(
        ListQuery(states=_states(states), user=user, all=everyone, limit=limit)
    )


def get_allocation(
    reference: str, *, last_output: bool = False, runs: bool = False
) -> Call[AllocationCard]:
    """Get one allocation. With `last_output` the server asks its nodes when it last wrote.

    With `runs` it asks the site's run store for the training runs of an own allocation.
    """
    return GET_ALLOCATION.call(CardRequest(id=reference, last_output=last_output, runs=runs))


def list_history(
    *,
    states: tuple[str, ...] = (),
    user: str = "",
    everyone: bool = False,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 0,
    cursor: str = "",
) -> Call[AllocationList]:
    """List the allocations of a time range, from the accounting store."""
    return LIST_HISTORY.call(
        HistoryQuery(
            states=_states(states),
            user=user,
            all=everyone,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        )
    )


def _states(names: tuple[str, ...]) -> tuple[State, ...]:
    return tuple(one_of(State, each) for each in names)


SDK: Mapping[str, Callable[..., object]] = {
    "allocations": list_allocations,
    "allocation": get_allocation,
    "history": list_history,
}
"""Method names of the SDK, and the functions that build their calls."""
