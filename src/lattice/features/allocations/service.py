"""Which allocations a caller sees, from the live snapshot and from the accounting store.

AUTH-12: every lookup takes the same path, no matter who owns the allocation. It filters the live
snapshot by the caller's scope, then queries the accounting store with the same scope. No branch
distinguishes "not yours" from "does not exist".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from lattice.access.actor import Actor
from lattice.access.allocation_finder import LONGEST_PATIENCE_S, PATIENCE_S, AllocationFinder, Found
from lattice.access.permission import Permission
from lattice.access.policy import scope_of
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable, UsageError
from lattice.domain.allocation import Allocation
from lattice.domain.families import newest_first, position, with_elapsed, without_runaways
from lattice.domain.last_output import LastOutput, LastOutputs
from lattice.domain.scheduler import PastQuestion, Scheduler, Scope
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.sharing import ReadNotes, ReadRecord, Share, Shares, Standing
from lattice.domain.slices import AllocationSlice
from lattice.domain.source import AGREED, PAST, Source
from lattice.features.allocations.model import (
    LARGEST_LIST,
    AllocationCard,
    AllocationList,
    HistoryQuery,
    ListQuery,
)
from lattice.foundation.run_finder import FoundRuns, TrainingRunFinder

_RECENT = timedelta(hours=24)
_HISTORY = timedelta(days=7)
_RUNS_WITHIN_S = 1.0
"""A card does not wait longer for the run store."""


class AllocationService:
    """Lists and looks up allocations for one caller at a time."""

    def __init__(  # noqa: PLR0913, PLR0917 - its dependencies
        self,
        scheduler: Scheduler,
        clock: Clock,
        shares: Shares | None = None,
        notes: ReadNotes | None = None,
        outputs: LastOutputs | None = None,
        finder: AllocationFinder | None = None,
        runs: TrainingRunFinder | None = None,
        sensitive: SensitiveWork | None = None,
        slices: Callable[[Allocation], tuple[AllocationSlice, ...]] = lambda _: (),
    ) -> None:
        """`finder` looks up single allocations; without one, by the owner and roles alone.

        `slices` returns the GPU slices that an allocation runs in.
        """
        self._runs = runs or TrainingRunFinder(clock)
        self._sensitive = sensitive or SensitiveWork()
        self._slices = slices
        self._outputs = outputs
        self._scheduler = scheduler
        self._clock = clock
        self._shares = shares
        self._notes = notes
        self._finder = finder or AllocationFinder(scheduler, clock, shares)

    async def recent(self, actor: Actor, query: ListQuery) -> AllocationList:
        """Return unfinished allocations and those that ended within 24 hours."""
        reading = self._scheduler.live()
        permitted = scope_of(actor, Permission.VIEW_ALLOCATIONS, reading.cluster.accounts)
        scope = _narrowed(permitted, actor, query)
        now = self._clock.now()
        since = now - _RECENT
        question = PastQuestion(scope=scope, since=since)
        past, past_source = await self._finder.past(question, patience_s=PATIENCE_S)
        live = [each for each in reading.cluster.visible(scope) if _recent(each, since)]
        known = {each.job_id for each in live}
        gone = [each for each in past if each.job_id not in known and _recent(each, since)]
        if reading.source.ok:
            gone = without_runaways(gone, before=reading.cluster.read_at)
        found = [each for each in (*live, *gone) if scope.covers(each) and _asked(each, query)]
        return _page(
            with_elapsed(found, self._finder.counted_to(reading)),
            query,
            (reading.source, past_source),
        )

    async def history(self, actor: Actor, query: HistoryQuery) -> AllocationList:
        """Return the allocations of a time range, by default the last 7 days.

        Only the accounting store has them. Raises `Unavailable` if it does not answer.
        """
        reading = self._scheduler.live()
        permitted = scope_of(actor, Permission.VIEW_ALLOCATIONS, reading.cluster.accounts)
        scope = _narrowed(permitted, actor, query)
        now = self._clock.now()
        since = query.since or (query.until or now) - _HISTORY
        if query.until is not None and query.until < since:
            raise UsageError("The time range ends before it begins.", hint="Swap since and until.")
        question = PastQuestion(
            scope=scope, since=since, until=query.until, states=frozenset(query.states)
        )
        past = await self._scheduler.past(question, patience_s=LONGEST_PATIENCE_S)
        found = [each for each in past if scope.covers(each) and _asked(each, query)]
        found = with_elapsed(found, self._finder.counted_to(reading))
        return _page(found, query, (Source(name=PAST, ok=True, as_of=now, age_s=0.0),))

    async def card(
        self, actor: Actor, name: str, *, last_output: bool = False, runs: bool = False
    ) -> AllocationCard:
        """Return one allocation; the newest visible one if an id was used twice.

        With `last_output` its nodes are asked when it last wrote, and with `runs` the run store.
        """
        found = await self._finder.find(actor, Permission.VIEW_ALLOCATIONS, name)
        owners, output, trained = await asyncio.gather(
            self._for_owner(found),
            self._last_output(found) if last_output else _nothing(),
            self._runs_of(found) if runs else _no_runs(),
        )
        shares, readers, sharing_sources = owners
        return AllocationCard(
            allocation=found.allocation,
            siblings=found.siblings,
            earlier=found.earlier,
            sources=(*found.sources, *sharing_sources, *trained.sources),
            shares=shares,
            readers=readers,
            last_output=output,
            runs=trained.runs,
            slices=self._slices(found.allocation),
        )

    async def _last_output(self, found: Found) -> LastOutput | None:
        """Nothing of sensitive work: whoever sees the card may see no measurements of that."""
        if self._outputs is None or self._sensitive.covers(found.allocation):
            return None
        return await self._outputs.of(found.allocation)

    async def _runs_of(self, found: Found) -> FoundRuns:
        """Return runs if the caller is the owner; a source only if it is silent."""
        if found.standing is not Standing.OWNER or self._sensitive.covers(found.allocation):
            return FoundRuns()
        answer = await self._runs.of(found.allocation, _RUNS_WITHIN_S)
        silent = tuple(each for each in answer.sources if not each.ok)
        return FoundRuns(answer.runs, silent)

    async def _for_owner(
        self, found: Found
    ) -> tuple[tuple[Share, ...], tuple[ReadRecord, ...], tuple[Source, ...]]:
        """Return shares and readers if the caller is the owner, otherwise nothing."""
        if self._shares is None or self._notes is None or found.standing is not Standing.OWNER:
            return (), (), ()
        # The card does not need this, so a store that is known to be unreachable is not queried.
        source = self._shares.source
        if not source.ok:
            return (), (), (source,)
        now = self._clock.now()
        own = self._shares.of_owner(found.allocation.user)
        shares = tuple(each for each in own if each.covers(found.allocation, now))
        try:
            return shares, await self._notes.of((found.allocation,)), ()
        except Unavailable as problem:
            return shares, (), (Source(name=AGREED, ok=False, error=problem.message),)


async def _nothing() -> None:
    return None


async def _no_runs() -> FoundRuns:
    return FoundRuns()


def _narrowed(permitted: Scope, actor: Actor, query: ListQuery) -> Scope:
    # Without `all` the list is the caller's own, even if the role permits more.
    if query.all:
        return permitted
    user = query.user or actor.user
    if permitted.everything or user in permitted.users:
        return Scope(users=frozenset({user}) if user else frozenset())
    # Another user's work in accounts that the caller governs: `_asked` matches the user later.
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
