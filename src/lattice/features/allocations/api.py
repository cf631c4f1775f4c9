"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from lattice.base.call import Call, params
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.allocations.model import AllocationCard, AllocationList


def list_allocations(
    *, states: tuple[str, ...] = (), user: str = "", everyone: bool = False, limit: int = 0
) -> Call[AllocationList]:
    """The unfinished ones and those of the last day."""
    return Call(
        "GET",
        "/v1/allocations",
        AllocationList,
        params(state=states, user=user, all=everyone, limit=limit or None),
    )


def get_allocation(reference: str, *, last_output: bool = False) -> Call[AllocationCard]:
    """One, by any of its names. With `last_output` its nodes are asked when it last wrote."""
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    return Call(
        "GET",
        f"/v1/allocations/{quote(name, safe='')}",
        AllocationCard,
        params(last_output=last_output),
    )


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
    """Those of a stretch of time, from the accounting store."""
    return Call(
        "GET",
        "/v1/history",
        AllocationList,
        params(
            state=states,
            user=user,
            all=everyone,
            since=since.isoformat() if since else None,
            until=until.isoformat() if until else None,
            limit=limit or None,
            cursor=cursor,
        ),
    )
