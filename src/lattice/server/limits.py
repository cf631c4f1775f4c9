"""The limits in force on this replica: its table, its slots, and the buckets it owns.

A bucket lives on one replica, which every replica finds by the same hash of caller and kind over
the replicas that are up; the others ask it (`BucketOwner`). So one caller has one bucket, however
many replicas she calls, and no question costs a write to the agreed state. When a replica comes
or goes the buckets that move begin full: one fresh bucket, no more. An owner that does not answer
is stood in for by the bucket of the replica that was asked, and counted.
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
    Questions,
    Sessions,
    Verdict,
    owner_of,
    too_many_questions,
)
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import RateLimited, Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.state import StateStore
from lattice.server.figures import Figures
from lattice.server.sections import RateLimitsSection, UserLimits
from lattice.server.slots import PREFIX, Slot, Slots

_KEYS: dict[str, Limited] = {
    **{f"{kind.value}_max_concurrent": kind for kind in Sessions},
    **{f"{kind.value}_per_minute": kind for kind in Questions},
}


def limit_table(section: RateLimitsSection) -> LimitTable:
    """The configuration's numbers."""
    return LimitTable(
        _numbers(section), {sub: _numbers(limits) for sub, limits in section.users.items()}
    )


def _numbers(section: RateLimitsSection | UserLimits) -> dict[Limited, int]:
    found = {each.name: getattr(section, each.name) for each in fields(section)}
    return {kind: found[key] for key, kind in _KEYS.items() if found[key] is not None}


class BucketOwner(Protocol):
    """The other replicas, asked about buckets of theirs."""

    async def take(self, replica: str, sub: str, kind: Questions) -> Verdict:
        """One question of this caller's, judged there. Raises `Unavailable`."""


class NoOtherReplica:
    """Where there is one server, nobody else owns a bucket."""

    async def take(self, replica: str, sub: str, kind: Questions) -> Verdict:  # noqa: ARG002
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
        buckets: Buckets | None = None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._replica = replica
        self._replicas = replicas
        self._others = others
        self._buckets = buckets or Buckets()
        self.stood_in_total = 0
        """Questions judged here because the bucket's owner did not answer."""

    async def ask(self, sub: str, kind: Questions) -> None:
        """Return at once if it is granted; raises `RateLimited` with the time to wait."""
        verdict = await self._judged(sub, kind)
        if not verdict.granted:
            raise too_many_questions(kind, self._table.of(sub, kind), verdict.wait_s)

    def answer(self, sub: str, kind: Questions) -> Verdict:
        """One question, judged by the bucket on this replica."""
        per_minute = self._table.of(sub, kind)
        return self._buckets.take(sub, kind, per_minute, self._clock.monotonic())

    async def _judged(self, sub: str, kind: Questions) -> Verdict:
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
    """What features are given: a slot for a session, leave for a question.

    `sub` is always the verified caller's, as the token has it.
    """

    slots: Slots | None
    """None where there is no agreed state to count in; sessions are refused then."""
    rates: Rates
    refused: Callable[[str], None]
    """Told the kind of every refusal."""

    async def open(self, sub: str, kind: Sessions, session: str) -> Slot:
        """A slot for a session, or `RateLimited`; `session` is its id, also when it resumes."""
        if self.slots is None:
            raise Unavailable(
                "Sessions can't be counted: this server has no agreed state.",
                hint="Name etcd in the section `quorum` of the server's configuration.",
            )
        try:
            return await self.slots.take(sub, kind, session)
        except RateLimited:
            self.refused(kind.value)
            raise

    async def ask(self, sub: str, kind: Questions) -> None:
        """Leave for a question, or `RateLimited`."""
        try:
            await self.rates.ask(sub, kind)
        except RateLimited:
            self.refused(kind.value)
            raise


@asynccontextmanager
async def open_limits(  # noqa: PLR0913 - what they stand on
    section: RateLimitsSection,
    store: StateStore | None,
    clock: Clock,
    figures: Figures,
    supervisor: Supervisor,
    *,
    replica: str,
    lease: Callable[[], int] | None = None,
    replicas: Callable[[], Collection[str]] = tuple,
    others: BucketOwner | None = None,
) -> AsyncIterator[Limits]:
    """The limits in force while the context lasts.

    `lease` answers this replica's lease or raises `Unavailable`; `replicas` are those that are up.
    Without a store or a lease there is one server alone, and no sessions.
    """
    table = limit_table(section)
    rates = Rates(
        table, clock, replica=replica, replicas=replicas, others=others or NoOtherReplica()
    )

    def refused(kind: str) -> None:
        figures.limit_refusals.labels(kind).inc()

    if store is None or lease is None:
        figures.watch(lambda: {"limit_stood_in_total": rates.stood_in_total})
        yield Limits(None, rates, refused)
        return
    view = WatchedStateView(store, PREFIX, clock)
    slots = Slots(store, view, table, clock, replica=replica, lease=lease)
    figures.watch(
        lambda: {
            "limit_stood_in_total": rates.stood_in_total,
            "limit_blind_sessions_total": slots.blind_total,
        }
    )
    figures.show(lambda: {"sessions_open": slots.held})
    async with supervisor.running(
        Loop("limits view", view.run, OnFailure.RESTART),
        Loop("limits slots", slots.run, OnFailure.RESTART),
    ):
        yield Limits(slots, rates, refused)
