"""Finds one allocation by its name, for one caller. There is no other look-up.

One rule implements AUTH-12: every look-up takes the same steps, for any owner. First it filters the
live reading by the caller's scope. Then it queries the accounting store with the same scope. What
is in neither does not exist for the caller. No branch distinguishes "not yours" from "not there".

Shares widen one look-up by exactly the shared allocations. The caller may know its own shares, so
the time may depend on them. It never depends on another's job.

Sensitive work is not shared, and only its owner may see what is in it. Who may know that it exists
gets `SensitiveIsolation`; for everyone else it is not there. If it ran on nodes that its owner had
not claimed, what is in it is for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lattice.access.actor import Actor
from lattice.access.permission import Permission
from lattice.access.policy import (
    known_of,
    scope_of,
    sensitive_standing,
    standing_of,
    takes_shares,
)
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.domain.allocation import (
    REFERENCE_HINT,
    Allocation,
    BadReference,
    Reference,
    parse_reference,
)
from lattice.domain.families import family, with_attempts, with_elapsed, without_runaways
from lattice.domain.scheduler import PastQuestion, Scheduler, SchedulerReading, Scope
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.sharing import Share, Shares, Standing
from lattice.domain.source import AGREED, PAST, Source

_SERVED = frozenset(
    {
        Permission.READ_OUTPUT,
        Permission.READ_MEASUREMENTS,
        Permission.ATTACH_ALLOCATION,
        Permission.SWITCH_TELEMETRY,
    }
)
"""What is served of sensitive work only where it ran on claimed nodes."""
PATIENCE_S = 3.0
"""How long a caller that has live data waits for the accounting store."""
LONGEST_PATIENCE_S = 8.0
"""How long any other caller waits: less than a client waits for the server."""


@dataclass(frozen=True, slots=True)
class Found:
    """One allocation, the rest of its array or het job, and older uses of its id."""

    allocation: Allocation
    siblings: tuple[Allocation, ...]
    earlier: tuple[str, ...]
    sources: tuple[Source, ...]
    standing: Standing
    """The right by which the caller sees it."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """What one caller may see in one look-up: by its own right, and by shares."""

    scope: Scope
    known: Scope
    """The sensitive allocations that it may know of."""
    shares: tuple[Share, ...]
    now: datetime
    is_sensitive: Callable[[Allocation], bool]

    @property
    def widest(self) -> Scope:
        """Where to look; `covers` then decides on each result."""
        owners = frozenset(share.owner for share in self.shares)
        return Scope(
            users=self.scope.users | self.known.users | owners,
            accounts=self.scope.accounts | self.known.accounts,
            everything=self.scope.everything or self.known.everything,
        )

    def covers(self, allocation: Allocation) -> bool:
        if self.is_sensitive(allocation):
            return self.known.covers(allocation)
        return self.scope.covers(allocation) or any(
            share.covers(allocation, self.now) for share in self.shares
        )


class AllocationFinder:
    """Looks up allocations within what a caller may see."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        shares: Shares | None = None,
        sensitive: SensitiveWork | None = None,
        acts: SensitiveActs | None = None,
    ) -> None:
        """`acts` records what is refused of sensitive work."""
        self._acts = acts or SensitiveActs()
        self._scheduler = scheduler
        self._clock = clock
        self._shares = shares
        self._sensitive = sensitive or SensitiveWork()

    async def find(self, actor: Actor, permission: Permission, name: str) -> Found:
        """The newest visible one of that name. Raises `NotFound`, `Unavailable`, `UsageError`."""
        reference = _reference(name)
        asked_at = self._clock.now()
        reading = self._scheduler.live()
        reach = self._reach(actor, permission, reading)
        is_live = bool(self._families(reading, (), reach, reference))
        past, past_source = await self.past(
            PastQuestion(scope=reach.widest, reference=reference),
            patience_s=PATIENCE_S if is_live else LONGEST_PATIENCE_S,
        )
        families = self._families(reading, past, reach, reference)
        sources = [reading.source, past_source]
        if not families:
            # It may be younger than the reading, or just shared. Every owner's job gets this second
            # look.
            reading = await self._scheduler.fresh(users=reach.widest.only_users)
            newest, shares_source = await self._newest_shares(actor, permission)
            again = replace(reach, shares=newest)
            if again.widest != reach.widest:
                question = PastQuestion(scope=again.widest, reference=reference)
                past, past_source = await self.past(question, patience_s=LONGEST_PATIENCE_S)
            families = self._families(reading, past, again, reference)
            sources = [reading.source, past_source, *shares_source]
        if not families:
            raise _absent(reference, sources, asked_at)
        return self._found(actor, permission, reading, families, (reading.source, past_source))

    def find_live(self, actor: Actor, permission: Permission, name: str) -> Found | None:
        """Like `find`, but from the last reading alone and at once; None if only `find` can decide.

        Use it for what matters only while a job runs, because the accounting store is slow. After
        None the caller continues with `find`, so that "another's" and "absent" stay one answer.
        """
        reference = _reference(name)
        try:
            reading = self._scheduler.live()
        except Unavailable:
            return None
        reach = self._reach(actor, permission, reading)
        families = self._families(reading, (), reach, reference)
        if not families or families[0][0].first_submitted is None:
            return None
        return self._found(actor, permission, reading, families[:1], (reading.source,))

    async def confirm(self, actor: Actor, found: Found) -> None:
        """Raise `NotFound` if an allocation that was found by a share is not shared any more.

        Reads the shares now. Raises `Unavailable` if that fails.
        """
        if found.standing is not Standing.SHARED or self._shares is None:
            return
        now = self._clock.now()
        shares = await self._shares.newest_with(actor.user)
        if not any(share.covers(found.allocation, now) for share in shares):
            raise _not_there(found.allocation.id)

    def check(self, actor: Actor, permission: Permission, allocation: Allocation) -> None:
        """Raise if the caller who found it may not see it any more. Never waits."""
        accounts = self._scheduler.live().cluster.accounts
        if self._sensitive.covers(allocation):
            if sensitive_standing(actor, permission, accounts, allocation) is None:
                raise _not_there(allocation.id)
            self._check_nodes(actor, permission, allocation)
            return
        if standing_of(actor, permission, accounts, allocation) is not None:
            return
        now = self._clock.now()
        if not any(each.covers(allocation, now) for each in self._shared(actor, permission)):
            raise _not_there(allocation.id)
        if self._shares is not None and not self._shares.source.ok:
            raise Unavailable(
                f"Whether {allocation.id} is still shared with you can't be told now: the agreed "
                "state does not answer.",
                hint="Try again in a minute.",
            )

    def _reach(self, actor: Actor, permission: Permission, reading: SchedulerReading) -> _Reach:
        accounts = reading.cluster.accounts
        scope = scope_of(actor, permission, accounts)
        sensitive = self._sensitive
        known = known_of(actor, permission, accounts) if sensitive.is_possible else Scope()
        shares = self._shared(actor, permission)
        return _Reach(scope, known, shares, self._clock.now(), sensitive.covers)

    def _shared(self, actor: Actor, permission: Permission) -> tuple[Share, ...]:
        if self._shares is None or not takes_shares(actor, permission):
            return ()
        return self._shares.with_user(actor.user)

    async def _newest_shares(
        self, actor: Actor, permission: Permission
    ) -> tuple[tuple[Share, ...], tuple[Source, ...]]:
        if self._shares is None or not takes_shares(actor, permission):
            return (), ()
        # Do not wait for a store that is known to be silent.
        if self._shares.source.error is not None:
            return (), (self._shares.source,)
        try:
            return await self._shares.newest_with(actor.user), ()
        except Unavailable as problem:
            return (), (Source(name=AGREED, ok=False, error=problem.message),)

    def counted_to(self, reading: SchedulerReading) -> datetime:
        """The time up to which running jobs are known to run."""
        # While slurmctld does not answer, it is unknown whether jobs still run.
        return self._clock.now() if reading.source.ok else reading.cluster.read_at

    async def past(
        self, question: PastQuestion, *, patience_s: float
    ) -> tuple[tuple[Allocation, ...], Source]:
        """From the accounting store; empty, with the reason, while it does not answer."""
        try:
            past = await self._scheduler.past(question, patience_s=patience_s)
        except Unavailable as problem:
            return (), Source(name=PAST, ok=False, error=problem.message)
        return past, Source(name=PAST, ok=True, as_of=self._clock.now(), age_s=0.0)

    def _families(
        self,
        reading: SchedulerReading,
        past: Iterable[Allocation],
        reach: _Reach,
        reference: Reference,
    ) -> list[list[Allocation]]:
        remembered = {
            (each.job_id, each.submitted): each
            for each in past
            if reach.covers(each) and reference.matches(each)
        }
        found: list[Allocation] = []
        for each in reading.cluster.named(reference, reach.widest):
            # Each source has a part of its history, and a share depends on the first submit.
            memory = remembered.pop((each.job_id, each.submitted), None)
            whole = with_attempts(each, memory)
            if reach.covers(whole):
                found.append(whole)
        gone = list(remembered.values())
        if reading.source.ok:
            gone = without_runaways(gone, before=reading.cluster.read_at)
        found = with_elapsed((*found, *gone), self.counted_to(reading))
        return family(found, reference)

    def _found(
        self,
        actor: Actor,
        permission: Permission,
        reading: SchedulerReading,
        families: Sequence[Sequence[Allocation]],
        sources: tuple[Source, ...],
    ) -> Found:
        (allocation, *siblings), *older = families
        accounts = reading.cluster.accounts
        earlier = tuple(each[0].ref for each in older)
        if any(self._sensitive.covers(each) for each in families[0]):
            own = sensitive_standing(actor, permission, accounts, allocation)
            if own is None:
                now_s = self._clock.monotonic()
                self._acts.refused(actor, permission, allocation, "SensitiveIsolation", now_s)
                raise isolated(actor, permission, allocation)
            for each in families[0]:
                self._check_nodes(actor, permission, each)
        else:
            own = standing_of(actor, permission, accounts, allocation) or Standing.SHARED
        return Found(allocation, tuple(siblings), earlier, sources, own)

    def _check_nodes(self, actor: Actor, permission: Permission, allocation: Allocation) -> None:
        """Raise if it is sensitive work that ran where its owner had claimed no nodes."""
        if permission not in _SERVED or not (fault := self._sensitive.fault_of(allocation)):
            return
        self._acts.refused(actor, permission, allocation, fault, self._clock.monotonic())
        raise PermissionRefused(
            f"SensitiveIsolation: allocation {allocation.id} is sensitive work, and {fault}.",
            hint="Claim nodes first, and submit with `lattice submit --vcluster NAME`.",
        )


def isolated(actor: Actor, permission: Permission, allocation: Allocation) -> PermissionRefused:
    """The refusal for somebody who may know of a sensitive allocation."""
    if permission is Permission.SHARE_ALLOCATION and actor.user == allocation.user:
        return PermissionRefused(
            f"SensitiveIsolation: allocation {allocation.id} is sensitive work, which nobody can "
            "share.",
            hint="The compliance reviewer of your tenant can read its output.",
        )
    return PermissionRefused(
        f"SensitiveIsolation: allocation {allocation.id} is sensitive work; what is in it is for "
        f"{allocation.user} alone.",
        hint="Ask its owner. A compliance reviewer of the tenant can read its output.",
    )


def _reference(name: str) -> Reference:
    try:
        return parse_reference(name)
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None


def _absent(
    reference: Reference, sources: Sequence[Source], asked_at: datetime
) -> NotFound | Unavailable:
    silent = " and ".join(source.name for source in sources if not source.ok)
    if not silent:
        # A list that is too long to be read for every request may be older than a new job.
        read_at = sources[0].as_of
        return _not_there(str(reference), younger=read_at is not None and read_at < asked_at)
    return Unavailable(
        f"Whether allocation {reference} exists can't be told now: {silent} does not answer.",
        hint="Try again in a minute; `lattice status` shows what is known.",
    )


def _not_there(name: str, *, younger: bool = False) -> NotFound:
    return NotFound(
        f"No allocation {name} of yours.",
        hint="Slurm's list was read a moment ago: if it is new, try again in a minute."
        if younger
        else "`lattice status` lists yours, `lattice history` those of the past.",
    )
