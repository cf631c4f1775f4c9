"""One allocation by its name, for one caller: the only look-up there is.

One rule carries AUTH-12: every look-up goes the same way, whoever owns what. First the live
reading cut by the caller's scope, then the accounting store asked with the same scope; what is
in neither was never there. No branch knows the difference between "not yours" and "not there".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from lattice.access.actor import Actor
from lattice.access.permission import Permission
from lattice.access.policy import scope_of
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.domain.allocation import (
    REFERENCE_HINT,
    Allocation,
    BadReference,
    Reference,
    parse_reference,
)
from lattice.domain.families import family, with_attempts, with_elapsed, without_runaways
from lattice.domain.scheduler import PastQuestion, Reading, Scheduler, Scope
from lattice.domain.source import PAST, Source


@dataclass(frozen=True, slots=True)
class Found:
    """One allocation, the rest of its array or het job, and older uses of its id."""

    allocation: Allocation
    siblings: tuple[Allocation, ...]
    earlier: tuple[str, ...]
    sources: tuple[Source, ...]


class AllocationFinder:
    """Looks up allocations within what a caller may see."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock

    async def find(self, actor: Actor, permission: Permission, name: str) -> Found:
        """The newest visible one of that name. Raises `NotFound`, `Unavailable`, `UsageError`."""
        try:
            reference = parse_reference(name)
        except BadReference as problem:
            raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
        asked_at = self._clock.now()
        reading = self._scheduler.live()
        scope = scope_of(actor, permission, reading.cluster.accounts)
        past, past_source = await self.past(PastQuestion(scope=scope, reference=reference))
        families = self._families(reading, past, scope, reference)
        if not families:
            # It may be younger than the reading; whosever it is, one more look is taken.
            reading = await self._scheduler.fresh()
            families = self._families(reading, past, scope, reference)
        if not families:
            raise _absent(reference, reading.source, past_source, asked_at)
        newest, *older = families
        return Found(
            allocation=newest[0],
            siblings=tuple(newest[1:]),
            earlier=tuple(each[0].ref for each in older),
            sources=(reading.source, past_source),
        )

    def counted_to(self, reading: Reading) -> datetime:
        """Up to when it is known that what runs still runs."""
        # While slurmctld is silent nobody knows whether what ran still runs.
        return self._clock.now() if reading.source.ok else reading.cluster.read_at

    async def past(self, question: PastQuestion) -> tuple[tuple[Allocation, ...], Source]:
        """From the accounting store; nothing, and the reason, while it does not answer."""
        try:
            past = await self._scheduler.past(question)
        except Unavailable as problem:
            return (), Source(name=PAST, ok=False, error=problem.message)
        return past, Source(name=PAST, ok=True, as_of=self._clock.now(), age_s=0.0)

    def _families(
        self,
        reading: Reading,
        past: Iterable[Allocation],
        scope: Scope,
        reference: Reference,
    ) -> list[list[Allocation]]:
        remembered = {
            (each.job_id, each.submitted): each
            for each in past
            if scope.covers(each) and reference.matches(each)
        }
        found: list[Allocation] = []
        for each in reading.cluster.visible(scope):
            if reference.matches(each):
                memory = remembered.pop((each.job_id, each.submitted), None)
                found.append(with_attempts(each, memory))
        gone = list(remembered.values())
        if reading.source.ok:
            gone = without_runaways(gone, before=reading.cluster.read_at)
        found = with_elapsed((*found, *gone), self.counted_to(reading))
        return family(found, reference)


def _absent(
    reference: Reference, live: Source, past: Source, asked_at: datetime
) -> NotFound | Unavailable:
    if live.ok and past.ok:
        # A list too long to be read for every question may be older than a job just submitted.
        younger = live.as_of is not None and live.as_of < asked_at
        return NotFound(
            f"No allocation {reference} of yours.",
            hint="Slurm's list was read a moment ago: if it is new, try again in a minute."
            if younger
            else "`lattice status` lists yours, `lattice history` those of the past.",
        )
    silent = " and ".join(source.name for source in (live, past) if not source.ok)
    return Unavailable(
        f"Whether allocation {reference} exists can't be told now: {silent} does not answer.",
        hint="Try again in a minute; `lattice status` shows what is known.",
    )
