"""The attempt and the time range of a look. Pure except for the given time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from lattice.base.errors import DataUnavailable, UsageError
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import JobAttempt
from lattice.domain.nodeset import NodeSet
from lattice.features.top.model import LONGEST_DURATION_S, TopQuery


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time range of a look: its end, and its length."""

    at: float
    lasted_s: float
    running: bool
    duration_s: int | None
    """None for the newest values."""


def not_started(allocation: Allocation) -> DataUnavailable:
    return DataUnavailable(
        f"Allocation {allocation.id} has not started, so there is nothing to measure.",
        hint=f"`lattice status {allocation.id}` says what it waits for.",
    )


def stretch_of(job: JobAttempt, query: TopQuery, now: datetime) -> Stretch:
    """Return the time range of a query. Raises `UsageError` and `DataUnavailable`."""
    if query.duration_s is not None and not 0 < query.duration_s <= LONGEST_DURATION_S:
        raise UsageError(
            f"A duration has 1 to {LONGEST_DURATION_S} seconds.", hint="Write 5m, 2h or 1d."
        )
    started, ended = job.attempt.started, job.attempt.ended
    if started is None:
        raise not_started(job.allocation)
    running = ended is None
    at = now if ended is None else ended
    lasted_s = max(1.0, (at - started).total_seconds())
    duration_s = query.duration_s
    if not running or duration_s is not None:
        # A finished attempt is shown whole, unless the query has a shorter duration.
        duration_s = math.ceil(min(duration_s or math.inf, lasted_s))
    return Stretch(at.timestamp(), lasted_s, running, duration_s)


def nodes_of(attempt: Attempt) -> tuple[str, ...]:
    """Return the names of its nodes, in order."""
    try:
        return tuple(NodeSet.parse(attempt.nodes))
    except ValueError:
        return ()
