"""When a requeued job was first submitted: slurmctld forgets that, slurmdbd has it.

A requeue gives the job a new submit time in slurmctld, but its name in Lattice uses the first one.
The few jobs with a requeue are read from slurmdbd, once a run, and cached. Until then their first
submit time is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lattice.adapters.slurm.accounting import PastReader
from lattice.adapters.slurm.attempts import attempt_of, fold
from lattice.adapters.slurm.schema import PastRow
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.allocation import Allocation, Attempt, State

_Run = tuple[str, str, datetime, int]

_AT_ONCE = 200
_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class _Origin:
    first_submitted: datetime | None
    earlier: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class _Applied:
    """Kept, so that a record that did not change stays the same object."""

    read: Allocation
    origin: _Origin | None
    shown: Allocation


class Origins:
    """The earlier runs of requeued jobs that slurmctld still lists, from slurmdbd."""

    def __init__(self, past: PastReader, clock: Clock) -> None:
        self._past = past
        self._clock = clock
        self._known: dict[_Run, _Origin] = {}
        self._made: dict[int, _Applied] = {}
        self._seen: Iterable[Allocation] = ()
        self._requeued: list[Allocation] = []
        self._retry_at = -math.inf

    def applied(self, allocations: Sequence[Allocation]) -> tuple[Allocation, ...]:
        """The same allocations; requeued ones with the known data of their earlier runs."""
        made: dict[int, _Applied] = {}
        for each in allocations:
            if each.attempt > 1:
                origin, before = self._known.get(_run(each)), self._made.get(id(each))
                if before is None or before.read is not each or before.origin is not origin:
                    before = _Applied(each, origin, _with_origin(each, origin))
                made[id(each)] = before
        self._made = made
        if not made:
            return tuple(allocations)
        return tuple(made[id(each)].shown if id(each) in made else each for each in allocations)

    async def learn(self, allocations: Iterable[Allocation], placing: Placing) -> bool:
        """Read some unknown ones; True if any was found. Raises no `LatticeError`."""
        if allocations is not self._seen:
            self._seen = allocations
            self._requeued = [each for each in allocations if each.attempt > 1]
        requeued = self._requeued
        here = {_run(each) for each in requeued}
        self._known = {run: origin for run, origin in self._known.items() if run in here}
        unknown = [each for each in requeued if _run(each) not in self._known][:_AT_ONCE]
        if not unknown or self._clock.monotonic() < self._retry_at:
            return False
        self._retry_at = self._clock.monotonic() + _RETRY_S
        try:
            rows = await self._past.stories((each.job_id for each in unknown), placing)
        except LatticeError:
            return False
        found = {_run(each): _origin(each, rows) for each in unknown}
        learnt = {run: origin for run, origin in found.items() if origin is not None}
        self._known.update(learnt)
        if len(learnt) == len(unknown):
            self._retry_at = -math.inf
        return bool(learnt)


def _with_origin(allocation: Allocation, origin: _Origin | None) -> Allocation:
    if origin is None:
        return allocation
    current = attempt_of(allocation.attempt, allocation, current=True)
    return replace(
        allocation,
        first_submitted=origin.first_submitted,
        attempts=(*origin.earlier, current),
    )


def steady_attempts(
    before: Iterable[Allocation], after: Sequence[Allocation]
) -> Callable[[Allocation], Allocation] | None:
    """Corrects the attempt of jobs that complete in order to be requeued; None if there is none.

    Slurm counts the restart while the old run still completes under its old submit time. Within one
    submit time the attempt is the one seen before.
    """
    doubtful = {
        (each.id, each.submitted)
        for each in after
        if each.attempt > 1 and each.state is State.COMPLETING
    }
    if not doubtful:
        return None
    seen = {
        (each.id, each.submitted): each for each in before if (each.id, each.submitted) in doubtful
    }

    def steady(job: Allocation) -> Allocation:
        old = seen.get((job.id, job.submitted))
        if old is None or old.attempt >= job.attempt or job.state is not State.COMPLETING:
            return job
        return replace(job, attempt=old.attempt, first_submitted=old.first_submitted)

    return steady


def _run(allocation: Allocation) -> _Run:
    return allocation.id, allocation.user, allocation.submitted, allocation.attempt


def _origin(live: Allocation, rows: Iterable[PastRow]) -> _Origin | None:
    # slurmctld's own record is added as the last row: slurmdbd may not have it yet. Its restart
    # count shows that it continues the previous one.
    last = PastRow(live, restarts=live.attempt - 1)
    mine = [row for row in rows if row.allocation.id == live.id]
    for story in fold([*mine, last]):
        if story.submitted == live.submitted and story.user == live.user and story.attempts:
            return _Origin(story.first_submitted, story.attempts[:-1])
    return None
