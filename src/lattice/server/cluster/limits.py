"""The limits in force on this replica: its table, its slots, and the buckets it owns.

A bucket is kept on one replica. Every replica finds it by the same hash of caller and kind over the
replicas that are up, and calls it (`BucketOwner`). So one caller has one bucket over all replicas,
and no question costs a write to the agreed state. When a replica comes or goes, the buckets that
move begin full: one fresh bucket, no more. If an owner does not answer, the replica uses its own
bucket instead, and counts that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Protocol

from lattice.access.limits import (
    Buckets,
    Limited,
    LimitTable,
    LimitVerdict,
    Questions,
    Sessions,
    owner_of,
    too_many_questions,
)
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import RateLimited, Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.state import StateStore
from lattice.foundation.own_metrics import OwnMetrics
from lattice.server.cluster.slots import PREFIX, Slot, Slots
from lattice.server.config.sections import RateLimitsSection, UserLimits

_KEYS: dict[str, Limited] = {
    **{f"{kind.value}_max_concurrent": kind for kind in Sessions},
    **{f"{kind.value}_per_minute": kind for kind in Questions},
}


def limit_table(section: RateLimitsSection) -> LimitTable:
    return LimitTable(
        _numbers(section), {sub: _numbers(limits) for sub, limits in section.users.items()}
    )


def _numbers(section: RateLimitsSection | UserLimits) -> dict[Limited, int]:
    found = {each.name: getattr(section, each.name) for each in fields(section)}
    return {kind: found[key] for key, kind in _KEYS.items() if found[key] is not None}


class BucketOwner(Protocol):
    """The other replicas, for buckets that they own."""

    async def take(self, replica: str, sub: str, kind: Questions) -> LimitVerdict:
        """Take one question of this caller there. Raises `Unavailable`."""


class NoOtherReplica:
    """For a single server, which owns all buckets."""

    async def take(self, replica: str, sub: str, kind: Questions) -> LimitVerdict:  # noqa: ARG002
        raise Unavailable(f"There is no way to {replica}.", hint="Try again.")


class Rates:
    """Paces questions. `answer` is for the other replicas, `ask` for callers of this one."""

    def __init__(
        self,
        table: LimitTable,
        clock: Clock,
        *,
        replica: str,
        replicas: Callable[[], Collection[str]],
        others: BucketOwner,
    ) -> None:
        self.table = table
        self._clock = clock
        self._replica = replica
        self._replicas = replicas
        self._others = others
        self._buckets = Buckets()
        self.stood_in_total = 0
        """Questions decided here because the bucket's owner did not answer."""

    async def ask(self, sub: str, kind: Questions) -> None:
        """Return at once if it is granted; raises `RateLimited` with the time to wait."""
        verdict = await self._judged(sub, kind)
        if not verdict.granted:
            raise too_many_questions(kind, self.table.of(sub, kind), verdict.wait_s)

    def answer(self, sub: str, kind: Questions) -> LimitVerdict:
        """Take one question from the bucket on this replica."""
        per_minute = self.table.of(sub, kind)
        return self._buckets.take(sub, kind, per_minute, self._clock.monotonic())

    async def _judged(self, sub: str, kind: Questions) -> LimitVerdict:
        owner = owner_of(sub, kind, self._replicas())
        if owner is None or owner == self._replica:
            return self.answer(sub, kind)
        try:
            return await self._others.take(owner, sub, kind)
        except Unavailable:
            self.stood_in_total += 1
            return self.answer(sub, kind)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits as features use them: a slot for a session, permission for a question.

    `sub` is always the verified caller's, from the token.
    """

    slots: Slots
    rates: Rates
    refused: Callable[[str], None]
    """Called with the kind of every refusal."""

    def reload(self, section: RateLimitsSection) -> None:
        """From now on these numbers. Who has more open keeps it."""
        self.slots.table = self.rates.table = limit_table(section)

    async def open(self, sub: str, kind: Sessions, session: str) -> Slot:
        """A slot for a session, or `RateLimited`; `session` is its id, also when it resumes."""
        try:
            return await self.slots.take(sub, kind, session)
        except RateLimited:
            self.refused(kind.value)
            raise

    async def ask(self, sub: str, kind: Questions) -> None:
        try:
            await self.rates.ask(sub, kind)
        except RateLimited:
            self.refused(kind.value)
            raise


@asynccontextmanager
async def open_limits(  # noqa: PLR0913 - its dependencies
    section: RateLimitsSection,
    store: StateStore,
    clock: Clock,
    own_metrics: OwnMetrics,
    supervisor: Supervisor,
    *,
    replica: str,
    lease: Callable[[], int],
    replicas: Callable[[], Collection[str]],
    others: BucketOwner,
) -> AsyncIterator[Limits]:
    """The limits in force while the context lasts.

    `lease` returns this replica's lease or raises `Unavailable`; `replicas` are those that are up.
    """
    table = limit_table(section)
    rates = Rates(table, clock, replica=replica, replicas=replicas, others=others)
    view = WatchedStateView(store, PREFIX, clock)
    slots = Slots(store, view, table, clock, replica=replica, lease=lease)
    own_metrics.watch(
        lambda: {
            "limit_stood_in_total": rates.stood_in_total,
            "limit_blind_sessions_total": slots.blind_total,
        }
    )
    own_metrics.show(lambda: {"sessions_open": slots.held})
    async with supervisor.running(
        Loop("limits view", view.run, OnFailure.RESTART),
        Loop("limits slots", slots.run, OnFailure.RESTART),
    ):
        yield Limits(slots, rates, own_metrics.limit_refused)
