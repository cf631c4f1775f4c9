"""When a requeued job was first submitted: slurmctld forgets that, slurmdbd has it.

A requeue gives the job a new submit time in slurmctld, but its name in Lattice uses the first one.
The few jobs with a requeue are read from slurmdbd, once a run, and cached. Until then their first
submit time is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
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


class Origins:
    """The earlier runs of requeued jobs that slurmctld still lists, from slurmdbd."""

    def __init__(self, past: PastReader, clock: Clock) -> None:
        self._past = past
        self._clock = clock
        self._known: dict[_Run, _Origin] = {}
        self._retry_at = -math.inf

    def completed(self, job: Allocation) -> Allocation:
        """The same allocation; a requeued one with the known data of its earlier runs."""
        origin = self._known.get(_run(job)) if is_requeued(job) else None
        return job if origin is None else _with_origin(job, origin)

    async def learn(
        self, requeued: Collection[Allocation], placing: Placing
    ) -> Sequence[Allocation]:
        """Read some unknown ones of these, which are all; returns those that are known now.

        Raises no `LatticeError`.
        """
        here = {_run(each) for each in requeued}
        self._known = {run: origin for run, origin in self._known.items() if run in here}
        unknown = [each for each in requeued if _run(each) not in self._known][:_AT_ONCE]
        if not unknown or self._clock.monotonic() < self._retry_at:
            return ()
        self._retry_at = self._clock.monotonic() + _RETRY_S
        try:
            rows = await self._past.stories((each.job_id for each in unknown), placing)
        except LatticeError:
            return ()
        found = {_run(each): _origin(each, rows) for each in unknown}
        learnt = {run: origin for run, origin in found.items() if origin is not None}
        self._known.update(learnt)
        if len(learnt) == len(unknown):
            self._retry_at = -math.inf
        return [each for each in unknown if _run(each) in learnt]


def is_requeued(job: Allocation) -> bool:
    """True if it has earlier runs."""
    return job.attempt > 1


def _with_origin(allocation: Allocation, origin: _Origin) -> Allocation:
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
