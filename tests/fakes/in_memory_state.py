"""Agreed state in memory, for tests of what stands on the port. Passes the port's contract suite.

`Keyspace` is the state itself; an `InMemoryStateStore` is one process's door to it. Two replicas
are two doors to one keyspace: `InMemoryStateStore(clock)` and `store.another()`.

Leases run by the clock that is given: move it, then call `sweep`. A door that is there keeps its
leases alive whatever the clock says; one that is `away` does not, nor does one that `dies`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.state import (
    Change,
    Changed,
    Compacted,
    Delete,
    Entry,
    Expect,
    LeaseGone,
    Listing,
    NewerKeys,
    Put,
    check_commit,
    check_key,
    check_lease,
    check_prefix,
    check_value,
)


@dataclass(slots=True)
class Keyspace:
    """Keys, their history, and the leases they live under."""

    entries: dict[str, Entry] = field(default_factory=dict)
    revision: int = 1
    history: list[tuple[Changed, ...]] = field(default_factory=list)
    compacted: int = 0
    """Changes up to this revision are forgotten."""
    leases: dict[int, InMemoryLease] = field(default_factory=dict)
    lease_ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def revision_of(self, key: str) -> int:
        entry = self.entries.get(key)
        return entry.revision if entry else 0

    def under(self, prefix: str) -> tuple[Entry, ...]:
        keys = sorted(key for key in self.entries if key.startswith(prefix))
        return tuple(self.entries[key] for key in keys)

    def apply(self, changes: Sequence[Change]) -> int:
        revision = self.revision + 1
        seen = [each for change in changes if (each := self._apply(change, revision))]
        if seen:
            self.revision = revision
            self.history.append(tuple(seen))
            self.wake()
        return self.revision

    def _apply(self, change: Change, revision: int) -> Changed | None:
        before = self.entries.pop(change.key, None)
        if isinstance(change, Delete):
            return Changed(change.key, None, revision) if before else None
        created = before.created if before else revision
        entry = Entry(change.key, bytes(change.value), revision, created, change.lease)
        self.entries[change.key] = entry
        return Changed(change.key, entry, revision)

    def end(self, lease: int) -> None:
        """Every key under it goes, in one revision."""
        self.leases.pop(lease, None)
        under = sorted(key for key, entry in self.entries.items() if entry.lease == lease)
        self.apply([Delete(key) for key in under])

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class InMemoryLease:
    """Kept alive by the door it was taken through."""

    def __init__(self, number: int, ttl_s: int, store: InMemoryStateStore) -> None:
        self.id = number
        self.ttl_s = ttl_s
        self.kept = True
        self.confirmed_s = store.clock.monotonic()
        self.store = store
        self.lost_event = asyncio.Event()

    @property
    def lost(self) -> bool:
        if self.store.clock.monotonic() >= self.expires_s:
            self.lost_event.set()
        return self.lost_event.is_set()

    @property
    def expires_s(self) -> float:
        kept = self.kept and not self.store.away
        return math.inf if kept else self.confirmed_s + self.ttl_s

    async def wait_lost(self) -> None:
        await self.lost_event.wait()

    async def release(self) -> None:
        self.lost_event.set()
        if self.store.away:
            self.kept = False  # and it ends by itself
        else:
            self.store.space.end(self.id)


class InMemoryStateStore:
    """One door. `away` silences it; `watches_held` lets calls pass, and holds what watches see."""

    def __init__(self, clock: Clock, keyspace: Keyspace | None = None) -> None:
        self.clock = clock
        self.space = keyspace or Keyspace()
        self.watches_held = False
        self._away = False

    def another(self) -> InMemoryStateStore:
        """What another replica has: a door of its own to the same state."""
        return InMemoryStateStore(self.clock, self.space)

    @property
    def away(self) -> bool:
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        self._confirm_leases()
        for lease in self._own_leases():
            lease.kept = lease.kept and not lease.lost
        self._away = away
        self._confirm_leases()
        self.space.wake()

    def hold_watches(self) -> None:
        """Nothing reaches a watch until `let_watches_go`, though calls go on."""
        self.watches_held = True

    def let_watches_go(self) -> None:
        self.watches_held = False
        self.space.wake()

    def die(self) -> None:
        """As the process would: its leases are kept no more, and end by themselves."""
        self._confirm_leases()
        for lease in self._own_leases():
            lease.kept = False

    def sweep(self) -> None:
        """End the leases whose time is over; call it when the clock was moved."""
        for lease in tuple(self.space.leases.values()):
            if self.clock.monotonic() >= lease.expires_s:
                lease.lost_event.set()
                self.space.end(lease.id)

    def compact(self) -> None:
        """Forget every change made so far; what stands stays."""
        self.space.compacted = self.space.revision
        self.space.history.clear()
        self.space.wake()

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        await self._reach()
        return self.space.entries.get(key)

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        await self._reach()
        return Listing(self.space.under(prefix), self.space.revision)

    async def newer(self, prefix: str, after: int) -> NewerKeys:
        check_prefix(prefix)
        await self._reach()
        under = self.space.under(prefix)
        found = tuple(each for each in under if each.revision > after)
        return NewerKeys(found, len(under), self.space.revision)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        check_key(key)
        check_value(key, value)
        await self._reach()
        self._check_lease(lease)
        return self.space.apply([Put(key, value, lease)])

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        check_commit(expect, changes)
        await self._reach()
        if any(self.space.revision_of(each.key) != each.revision for each in expect):
            return None
        for change in changes:
            self._check_lease(change.lease if isinstance(change, Put) else 0)
        return self.space.apply(changes)

    async def lease(self, ttl_s: int) -> InMemoryLease:
        check_lease(ttl_s)
        await self._reach()
        lease = InMemoryLease(next(self.space.lease_ids), ttl_s, self)
        self.space.leases[lease.id] = lease
        return lease

    @asynccontextmanager
    async def watch(
        self, prefix: str, after: int
    ) -> AsyncIterator[AsyncIterator[tuple[Changed, ...]]]:
        check_prefix(prefix)
        seeing = self._see(prefix, after)
        try:
            yield seeing
        finally:
            await seeing.aclose()

    async def _see(self, prefix: str, after: int) -> AsyncGenerator[tuple[Changed, ...]]:
        while True:
            changed = self.space.changed
            if not (self._away or self.watches_held):
                if after < self.space.compacted:
                    raise Compacted
                newest = self.space.revision
                for batch in tuple(self.space.history):
                    revision = batch[0].revision
                    if revision <= after:
                        continue
                    after = revision
                    seen = tuple(each for each in batch if each.key.startswith(prefix))
                    if seen:
                        yield seen
                after = max(after, newest)
            await changed.wait()

    async def _reach(self) -> None:
        # Others get their turn, as they do while a real store is asked.
        await asyncio.sleep(0)
        if self._away:
            raise Unavailable(
                "The agreed state can't be reached.", hint="Try again in a few seconds."
            )

    def _check_lease(self, lease: int) -> None:
        if lease and lease not in self.space.leases:
            raise LeaseGone

    def _own_leases(self) -> tuple[InMemoryLease, ...]:
        return tuple(each for each in self.space.leases.values() if each.store is self)

    def _confirm_leases(self) -> None:
        if not self._away:
            for lease in self._own_leases():
                if lease.kept and not lease.lost_event.is_set():
                    lease.confirmed_s = self.clock.monotonic()
