"""`WatchedStateView`: the port `StateView` over any `StateStore`, updated by a watch and by lists.

`run` lists, then watches from the listing's revision. etcd's reads are strictly serialisable, but
its watch is not. So every half minute it asks for the keys that changed since it asked last, and
for the number of all keys. If the number differs, and every ten minutes, it lists them all again.
While the store is down the last copy stays, ages, and is marked as old. Don't use it for decisions:
a writer must fence with the revision it read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from types import MappingProxyType
from weakref import WeakSet

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.source import AGREED, Source
from lattice.domain.state import Changed, Compacted, Entry, Listing, StateStore

_log = logging.getLogger(__name__)

_LIST_EVERY_S = 30.0
_LISTS_WHOLE = 20
"""One of so many lists is of all keys. A store restored from a backup may hide what changed."""
_RETRY_S = 1.0
_STALE_AFTER_S = 40.0
"""A list is due every 30 s and may take 5 s: a longer silence is an error."""


class WatchedStateView:
    """One prefix. `run` updates it; the code that builds the process owns that task."""

    def __init__(
        self,
        store: StateStore,
        prefix: str,
        clock: Clock,
        *,
        list_every_s: float = _LIST_EVERY_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._list_every_s = list_every_s
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._sleep = sleep
        self._entries: dict[str, Entry] = {}
        self._snapshot: Mapping[str, Entry] | None = None
        self._revision = 0
        self._listed = 0
        """The revision of the last list; 0: the next one is of all keys."""
        self._lists = 0
        self._as_of: datetime | None = None
        self._as_of_s = 0.0
        self._error: str | None = None
        self._readers: WeakSet[_Reader] = WeakSet()
        self._first = asyncio.Event()
        self._listing = asyncio.Lock()

    @property
    def entries(self) -> Mapping[str, Entry]:
        """A snapshot: it does not change while it is read."""
        self._check_first()
        if self._snapshot is None:
            self._snapshot = MappingProxyType(dict(self._entries))
        return self._snapshot

    def get(self, key: str) -> Entry | None:
        """One key as last seen, without a snapshot of all."""
        self._check_first()
        return self._entries.get(key)

    def _check_first(self) -> None:
        if self._as_of is None:
            raise Unavailable(
                f"The agreed state has not answered yet{f': {self._error}' if self._error else ''}",
                hint="Try again in a few seconds.",
            )

    @property
    def source(self) -> Source:
        """The age counts from the store's last answer about this prefix."""
        age_s = None if self._as_of is None else self._clock.monotonic() - self._as_of_s
        return Source(
            name=AGREED,
            ok=self._error is None and age_s is not None and age_s <= _STALE_AFTER_S,
            as_of=self._as_of,
            age_s=age_s,
            error=self._error,
        )

    async def wait_first(self) -> None:
        """Return once there is a copy to read."""
        await self._first.wait()

    async def refresh(self) -> None:
        """Read all of it now. Raises `Unavailable`, and the last copy stays."""
        async with self._listing:
            # The watch may have been faster than the answer.
            await self._list(takes=lambda revision: revision >= self._revision)

    async def _list(self, takes: Callable[[int], bool]) -> None:
        async with self._asking() as asked:
            listing = await self._store.list(self._prefix)
        if takes(listing.revision):
            self._take(listing)
            self._listed = listing.revision
            self._as_of, self._as_of_s = asked

    async def _check(self) -> None:
        """Read what changed since the last list, or everything if that does not suffice."""
        if self._listed and self._lists % _LISTS_WHOLE and await self._take_newer():
            self._lists += 1
            return
        # With any revision: a store that was restored from a backup has a lower one.
        await self._list(takes=lambda _revision: True)
        self._lists += 1

    async def _take_newer(self) -> bool:
        """False if only a list of all keys shows what is there."""
        async with self._asking() as asked:
            newer = await self._store.newer(self._prefix, self._listed)
        added = sum(each.key not in self._entries for each in newer.entries)
        if newer.revision < self._revision or newer.count != len(self._entries) + added:
            return False
        self._apply(self._differing(newer.entries), newer.revision)
        self._listed = newer.revision
        self._as_of, self._as_of_s = asked
        return True

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[tuple[datetime, float]]:
        """Note whether the store answers. What it answers is as old as the question."""
        try:
            yield self._clock.now(), self._clock.monotonic()
        except LatticeError as error:
            if self._error is None:
                _log.warning("state %s: %s", self._prefix, error.message)
            self._error = error.message
            raise
        if self._error is not None:
            _log.info("state %s: answers again", self._prefix)
            self._error = None

    async def run(self) -> None:
        """Update the copy until cancelled."""
        while True:
            try:
                async with self._listing:
                    await self._check()
                await self._follow()
            except Compacted:
                _log.info("state %s: its past is gone, listing again", self._prefix)
                self._listed = 0
            except LatticeError as error:
                self._error = error.message
                self._listed = 0
                await self._sleep(_RETRY_S)

    def reader(self) -> _Reader:
        """A reader of the changes, for as long as somebody refers to it."""
        reader = _Reader()
        if self._entries:
            reader.give(Changed(each.key, each, each.revision) for each in self._entries.values())
        self._readers.add(reader)
        return reader

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[tuple[Changed, ...]]]:
        """First every entry, then changes; a slow reader gets only the newest of each key."""
        reader = self.reader()
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    async def _follow(self) -> None:
        # Ends after half a minute, so that `run` lists again; the next watch starts there.
        async with self._store.watch(self._prefix, after=self._revision) as batches:
            watching = asyncio.create_task(self._consume(batches), name=f"state {self._prefix}")
            due = asyncio.ensure_future(self._sleep(self._list_every_s))
            try:
                await asyncio.wait({watching, due}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
            finally:
                for task in (watching, due):
                    task.cancel()
                await asyncio.gather(watching, due, return_exceptions=True)

    async def _consume(self, batches: AsyncIterator[tuple[Changed, ...]]) -> None:
        async for batch in batches:
            if batch[0].revision > self._revision:
                self._apply(batch, batch[0].revision)
                self._as_of, self._as_of_s = self._clock.now(), self._clock.monotonic()

    def _take(self, listing: Listing) -> None:
        there = {entry.key: entry for entry in listing.entries}
        gone = [Changed(key, None, listing.revision) for key in self._entries if key not in there]
        self._apply((*gone, *self._differing(listing.entries)), listing.revision)
        self._first.set()

    def _differing(self, entries: Iterable[Entry]) -> tuple[Changed, ...]:
        return tuple(
            Changed(each.key, each, each.revision)
            for each in entries
            if self._entries.get(each.key) != each
        )

    def _apply(self, batch: tuple[Changed, ...], revision: int) -> None:
        self._revision = revision
        if not batch:
            return
        for change in batch:
            if change.entry is None:
                self._entries.pop(change.key, None)
            else:
                self._entries[change.key] = change.entry
        self._snapshot = None
        for reader in self._readers:
            reader.give(batch)


class _Reader:
    """Unread changes of one reader: only the newest of each key, so the keys limit its size."""

    def __init__(self) -> None:
        self._waiting: dict[str, Changed] = {}
        self._given = asyncio.Event()

    def give(self, batch: Iterable[Changed]) -> None:
        for change in batch:
            self._waiting.pop(change.key, None)
            self._waiting[change.key] = change
        self._given.set()

    def take(self) -> tuple[Changed, ...]:
        batch, self._waiting = tuple(self._waiting.values()), {}
        self._given.clear()
        return batch

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> tuple[Changed, ...]:
        await self._given.wait()
        return self.take()
