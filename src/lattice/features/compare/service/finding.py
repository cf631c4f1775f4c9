"""Checks that a caller may read every run of a comparison.

Each name takes the same path as any other read, one after the other. So another's run gives the
same answer at the same cost as a missing one. Nothing is recorded and no store is queried before
all are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lattice.access.actor import Actor
from lattice.access.allocation_finder import Found
from lattice.access.output import OutputAccess
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, PermissionRefused, UsageError
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import JobAttempt, attempts_of, named
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadKind
from lattice.features.compare.model import FEWEST_RUNS, MOST_RUNS

IsSensitive = Callable[[Allocation], bool]


@dataclass(frozen=True, slots=True)
class Entered:
    """A run that the caller may read."""

    job: JobAttempt
    attempts: int


class RunFinder:
    """Finds the runs of a comparison."""

    def __init__(
        self,
        scheduler: Scheduler,
        door: OutputAccess,
        clock: Clock,
        is_sensitive: IsSensitive = lambda _: False,
    ) -> None:
        self._scheduler = scheduler
        self._door = door
        self._clock = clock
        self._is_sensitive = is_sensitive

    async def enter(self, actor: Actor, names: Sequence[str]) -> tuple[Entered, ...]:
        """Find all runs. Raises `UsageError`, `PermissionRefused`, and what the finder raises."""
        _check_count(names)
        found = [await self._found(actor, each) for each in names]
        _check_different([each.allocation for each in found])
        kinds = {self._is_sensitive(each.allocation) for each in found}
        if len(kinds) > 1:
            raise PermissionRefused(
                "Sensitive work is not compared with other work.",
                hint="Compare sensitive allocations with each other alone.",
            )
        entered = [self._entered(each) for each in found]
        for each in found:
            await self._door.enter(actor, each, ReadKind.READ)
        return tuple(entered)

    async def _found(self, actor: Actor, name: str) -> Found:
        found = await self._door.find(actor, name)
        if _newest(found.allocation).started is None:
            # It may have started since the last snapshot of Slurm.
            await self._scheduler.fresh()
            found = await self._door.find(actor, name)
        return found

    def _entered(self, found: Found) -> Entered:
        allocation = found.allocation
        attempt = _newest(allocation)
        if attempt.started is None:
            raise DataUnavailable(
                f"Allocation {allocation.id} has not started, so there is nothing to compare.",
                hint=f"`lattice status {allocation.id}` says what it waits for.",
            )
        accounts = self._scheduler.live().cluster.accounts
        job = named(allocation, attempt, accounts, self._clock.now())
        return Entered(job, max(len(attempts_of(allocation)), allocation.attempt))


def _check_count(names: Sequence[str]) -> None:
    if not FEWEST_RUNS <= len(names) <= MOST_RUNS:
        raise UsageError(
            f"{len(names)} can't be compared: it takes {FEWEST_RUNS} to {MOST_RUNS} allocations.",
            hint="The first is the baseline: `lattice compare 41 42`.",
        )


def _check_different(allocations: Sequence[Allocation]) -> None:
    seen: set[str] = set()
    for each in allocations:
        if each.ref in seen:
            raise UsageError(
                f"Allocation {each.id} is named twice.", hint="Name each of them once."
            )
        seen.add(each.ref)


def _newest(allocation: Allocation) -> Attempt:
    """Return the newest attempt that has started: a requeued job has run before."""
    attempts = attempts_of(allocation)
    return next((each for each in reversed(attempts) if each.started), attempts[-1])
