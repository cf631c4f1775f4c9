"""The use case: which allocations a caller sees, from the live reading and from the past.

One rule carries AUTH-12: every look-up goes the same way, whoever owns what. First the live
reading cut by the caller's scope, then the accounting store asked with the same scope; what is
in neither was never there. No branch knows the difference between "not yours" and "not there".
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from lattice.access.actor import Actor
from lattice.access.permission import Permission
from lattice.access.policy import scope_of
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.domain.allocation import Allocation, BadReference, Reference, parse_reference
from lattice.domain.scheduler import PastQuestion, Reading, Scheduler, Scope
from lattice.domain.source import PAST, Source
from lattice.features.allocations.model import (
    LARGEST_LIST,
    REFERENCE_HINT,
    AllocationCard,
    AllocationList,
    HistoryQuery,
    ListQuery,
    family,
    newest_first,
    position,
    with_attempts,
    with_elapsed,
    without_runaways,
)

_RECENT = timedelta(hours=24)
_HISTORY = timedelta(days=7)


class AllocationService:
    """Lists, looks up and remembers allocations for one caller at a time."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock

    async def recent(self, actor: Actor, query: ListQuery) -> AllocationList:
        """The unfinished ones and those that ended within a day."""
        reading = self._scheduler.live()
        permitted = scope_of(actor, Permission.VIEW_ALLOCATIONS, reading.cluster.accounts)
        scope = _narrowed(permitted, actor, query)
        now = self._clock.now()
        since = now - _RECENT
        past, past_source = await self._past(PastQuestion(scope=scope, since=since))
        live = [each for each in reading.cluster.visible(scope) if _recent(each, since)]
        known = {each.job_id for each in live}
        gone = [each for each in past if each.job_id not in known and _recent(each, since)]
        if reading.source.ok:
            gone = without_runaways(gone, before=reading.cluster.read_at)
        found = [each for each in (*live, *gone) if scope.covers(each) and _asked(each, query)]
        return _page(
            with_elapsed(found, self._counted_to(reading)), query, (reading.source, past_source)
        )

    async def history(self, actor: Actor, query: HistoryQuery) -> AllocationList:
        """What the accounting store holds of a stretch of time; it alone, so it must answer."""
        reading = self._scheduler.live()
        permitted = scope_of(actor, Permission.VIEW_ALLOCATIONS, reading.cluster.accounts)
        scope = _narrowed(permitted, actor, query)
        now = self._clock.now()
        since = query.since or (query.until or now) - _HISTORY
        if query.until is not None and query.until < since:
            raise UsageError("The time range ends before it begins.", hint="Swap since and until.")
        question = PastQuestion(scope=scope, since=since, until=query.until, states=query.states)
        past = await self._scheduler.past(question)
        found = [each for each in past if scope.covers(each) and _asked(each, query)]
        found = with_elapsed(found, self._counted_to(reading))
        return _page(found, query, (Source(name=PAST, ok=True, as_of=now, age_s=0.0),))

    async def card(self, actor: Actor, name: str) -> AllocationCard:
        """One allocation by its name; the newest visible one where an id was used twice."""
        try:
            reference = parse_reference(name)
        except BadReference as problem:
            raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
        asked_at = self._clock.now()
        reading = self._scheduler.live()
        scope = scope_of(actor, Permission.VIEW_ALLOCATIONS, reading.cluster.accounts)
        past, past_source = await self._past(PastQuestion(scope=scope, reference=reference))
        families = self._families(reading, past, scope, reference)
        if not families:
            # It may be younger than the reading; whosever it is, one more look is taken.
            reading = await self._scheduler.fresh()
            families = self._families(reading, past, scope, reference)
        if not families:
            raise _absent(reference, reading.source, past_source, asked_at)
        newest, *older = families
        return AllocationCard(
            allocation=newest[0],
            siblings=tuple(newest[1:]),
            earlier=tuple(each[0].ref for each in older),
            sources=(reading.source, past_source),
        )

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
        found = with_elapsed((*found, *gone), self._counted_to(reading))
        return family(found, reference)

    def _counted_to(self, reading: Reading) -> datetime:
        # While slurmctld is silent nobody knows whether what ran still runs.
        return self._clock.now() if reading.source.ok else reading.cluster.read_at

    async def _past(self, question: PastQuestion) -> tuple[tuple[Allocation, ...], Source]:
        try:
            past = await self._scheduler.past(question)
        except Unavailable as problem:
            return (), Source(name=PAST, ok=False, error=problem.message)
        return past, Source(name=PAST, ok=True, as_of=self._clock.now(), age_s=0.0)


def _narrowed(permitted: Scope, actor: Actor, query: ListQuery) -> Scope:
    # "My allocations" is what an owner means even where a role would show more.
    if query.all:
        return permitted
    user = query.user or actor.user
    if permitted.everything or user in permitted.users:
        return Scope(users=frozenset({user}) if user else frozenset())
    # Another's work inside the accounts the caller governs: the user is matched afterwards.
    return Scope(accounts=permitted.accounts) if query.user else Scope()


def _asked(allocation: Allocation, query: ListQuery) -> bool:
    if query.user and allocation.user != query.user:
        return False
    return not query.states or allocation.state in query.states


def _recent(allocation: Allocation, since: datetime) -> bool:
    if not allocation.state.finished:
        return True
    return (allocation.ended or allocation.submitted) >= since


def _page(
    found: Iterable[Allocation], query: ListQuery, sources: tuple[Source, ...]
) -> AllocationList:
    ordered = newest_first(found)
    cursor = query.cursor if isinstance(query, HistoryQuery) else ""
    if cursor:
        last = _position(cursor)
        ordered = [each for each in ordered if position(each) < last]
    if query.limit < 0:
        raise UsageError("A list can't have fewer than no entries.", hint="Give a limit above 0.")
    limit = min(query.limit or LARGEST_LIST, LARGEST_LIST)
    page = tuple(ordered[:limit])
    more = len(ordered) > limit
    following = ".".join(map(str, position(page[-1]))) if more else None
    return AllocationList(allocations=page, sources=sources, next=following)


def _position(cursor: str) -> tuple[int, int]:
    moment, dot, job = cursor.partition(".")
    if not (dot and cursor.isascii() and moment.isdigit() and job.isdigit() and len(cursor) < 32):
        raise UsageError("The cursor is not one that a list has given.", hint="Start anew.")
    return int(moment), int(job)


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
