"""Counts open sessions exactly over all replicas: a session is a slot, a slot is a key.

    slots/KIND/CALLER/N   N below the caller's limit, put by compare-and-swap under the lease of
                          the replica that serves the session

There are only as many keys as the limit allows, and a key has one holder. So no interleaving of
replicas can open one session too many. A slot ends with its replica's lease, or 30 s after its
client disconnected. A client that reconnects in time takes the slot to any replica by naming its
session.

Without the state store nothing can be counted. Then a terminal is refused. Streams that only read
are counted on this replica alone (`blind`). They get a slot, or end, once the store answers again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from lattice.access.limits import (
    CLIENT_LOST_S,
    LimitTable,
    Sessions,
    caller_key,
    too_many_sessions,
)
from lattice.base.clock import Clock
from lattice.base.errors import RateLimited, Unavailable
from lattice.domain.state import Changed, Delete, Entry, Expect, Put, StateStore, StateView

_log = logging.getLogger(__name__)

PREFIX = "slots/"
_TRIES = 50
_MOST_EXPECTED = 64
_TICK_S = 1.0
_CLOSED_WHEN_BLIND = frozenset({Sessions.ATTACH})


@dataclass(slots=True, eq=False)
class Slot:
    """One open session. Its server ends it when `gone` is set."""

    sub: str
    kind: Sessions
    session: str
    slots: Slots
    key: str = ""
    """Empty while it is counted on this replica alone."""
    revision: int = 0
    holder: str = field(default_factory=lambda: secrets.token_hex(8))
    """The id of this slot: the same session opened again has another one."""
    unsure: bool = False
    """True if a key may have been put for it without a response."""
    lost_s: float | None = None
    """Since when its client is away, by the monotonic clock; None while it is connected."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the session moved to another replica, or has lost its slot."""

    async def wait_gone(self) -> None:
        await self.gone.wait()

    async def release(self) -> None:
        await self.slots.release(self)

    async def client_lost(self) -> None:
        await self.slots.client_lost(self)

    async def client_back(self) -> None:
        await self.slots.client_back(self)


@dataclass(frozen=True, slots=True)
class _Written:
    """The value of a key."""

    session: str = ""
    holder: str = ""
    lost: float = 0.0
    """When its client disconnected, wall time; 0 while it is connected."""


class Slots:
    """Takes and frees slots for the sessions that this replica serves."""

    def __init__(
        self,
        store: StateStore,
        view: StateView,
        table: LimitTable,
        clock: Clock,
        *,
        replica: str,
        lease: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`lease` returns this replica's lease, or raises `Unavailable`; `view` is of `PREFIX`."""
        self._store = store
        self._view = view
        self.table = table
        self._clock = clock
        self._replica = replica
        self._lease = lease
        self._sleep = sleep
        self._held: set[Slot] = set()
        self._by_key: dict[str, Slot] = {}
        self._freeing: set[Slot] = set()
        self.blind_total = 0
        """Sessions that were admitted while nothing could be counted."""

    @property
    def held(self) -> int:
        """The number of sessions served here."""
        return len(self._held)

    async def take(self, sub: str, kind: Sessions, session: str) -> Slot:
        """A slot for this session: its own if it has one anywhere, else a free one.

        Raises `RateLimited` if there is none, `Unavailable` if it can't be counted.
        """
        slot = Slot(sub, kind, session, self)
        try:
            await self._acquire(slot)
        except Unavailable as error:
            self._take_blind(slot, error)
        self._held.add(slot)
        return slot

    async def release(self, slot: Slot) -> None:
        self._held.discard(slot)
        if self._by_key.get(slot.key) is slot:
            del self._by_key[slot.key]
        self._freeing.add(slot)
        await self._free(slot)

    async def client_lost(self, slot: Slot) -> None:
        """The client has disconnected: the slot waits for 30 s, on any replica."""
        if slot.lost_s is None:
            slot.lost_s = self._clock.monotonic()
            await self._write(slot)

    async def client_back(self, slot: Slot) -> None:
        if slot.lost_s is not None:
            slot.lost_s = None
            await self._write(slot)

    async def run(self) -> None:
        """Follow the slots held here, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="slots follow")
            group.create_task(self._tick(), name="slots tick")

    async def _tick(self) -> None:
        while True:
            await self._sleep(_TICK_S)
            await self.tidy()

    async def tidy(self) -> None:
        """Do what is due: end sessions of lost clients, free keys, acquire slots again."""
        now_s = self._clock.monotonic()
        for slot in tuple(self._held):
            if slot.lost_s is not None and now_s - slot.lost_s >= CLIENT_LOST_S:
                slot.gone.set()
                await self.release(slot)
            elif not slot.key and not slot.gone.is_set():
                await self._acquire_again(slot)
        for slot in tuple(self._freeing):
            await self._free(slot)

    async def _follow(self) -> None:
        async with self._view.changes() as batches:
            await self._catch_up()
            async for batch in batches:
                for change in batch:
                    self.saw(change)

    async def _catch_up(self) -> None:
        """Find keys that were deleted before the watch: it only starts with the current ones."""
        if not self._by_key:
            return
        listing = await self._store.list(PREFIX)
        there = {entry.key for entry in listing.entries}
        for key in tuple(self._by_key):
            if key not in there:
                self.saw(Changed(key, None, listing.revision))

    def saw(self, change: Changed) -> None:
        """A key changed. If it is a slot held here, check that it is still ours."""
        slot = self._by_key.get(change.key)
        if slot is None or change.revision <= slot.revision:
            return
        if change.entry is None:
            # Deleted with our lease, because no other replica deletes it. `tidy` takes a new one.
            del self._by_key[change.key]
            slot.key, slot.revision = "", 0
        elif _read(change.entry).holder != slot.holder:
            slot.gone.set()

    async def _acquire(self, slot: Slot) -> None:
        prefix = _prefix(slot)
        limit = self.table.of(slot.sub, slot.kind)
        for _ in range(_TRIES):
            listing = await self._store.list(prefix)
            key = self._choose(prefix, listing.entries, slot.session, limit)
            put = Put(key, self._value(slot), self._lease())
            slot.unsure = True
            expect = _expected(prefix, listing.entries, key, limit)
            revision = await self._store.commit(expect, [put])
            slot.unsure = False
            if revision is not None:
                slot.key, slot.revision = key, revision
                before = self._by_key.get(key)
                if before is not None:
                    before.gone.set()
                self._by_key[key] = slot
                return
        raise Unavailable("Too many sessions open and close at once.", hint="Try again.")

    def _choose(self, prefix: str, entries: tuple[Entry, ...], session: str, limit: int) -> str:
        """The key to put. Raises `RateLimited`."""
        there = {entry.key: entry for entry in entries}
        own = next((entry for entry in entries if _read(entry).session == session), None)
        if own is not None:
            return own.key
        over = {key: entry for key, entry in there.items() if self._is_over(entry)}
        have = len(there) - len(over)
        for number in range(limit if have < limit else 0):
            key = f"{prefix}{number}"
            if key not in there or key in over:
                return key
        raise too_many_sessions(limit, have)

    def _is_over(self, entry: Entry) -> bool:
        # Its holder frees it itself; this is for a holder that is stuck.
        lost = _read(entry).lost
        return lost > 0 and self._clock.now().timestamp() - lost >= CLIENT_LOST_S

    def _take_blind(self, slot: Slot, error: Unavailable) -> None:
        if slot.kind in _CLOSED_WHEN_BLIND:
            if slot.unsure:
                self._freeing.add(slot)
            raise Unavailable(
                "Open sessions can't be counted now, so no new one is opened.",
                hint="Try again in a minute.",
            ) from error
        limit = self.table.of(slot.sub, slot.kind)
        have = sum(each.sub == slot.sub and each.kind is slot.kind for each in self._held)
        if have >= limit:
            raise too_many_sessions(limit, have) from None
        self.blind_total += 1

    async def _acquire_again(self, slot: Slot) -> None:
        try:
            await self._acquire(slot)
        except RateLimited:
            _log.info("a session of %s lost its slot: %s", slot.kind.value, slot.session)
            slot.gone.set()
        except Unavailable:
            return

    async def _write(self, slot: Slot) -> None:
        if not slot.key:
            return
        try:
            put = Put(slot.key, self._value(slot), self._lease())
            revision = await self._store.commit([Expect(slot.key, slot.revision)], [put])
        except Unavailable:
            # The local clock counts too, so the slot is freed in time without it.
            return
        if revision is None:
            slot.gone.set()
        else:
            slot.revision = revision

    async def _free(self, slot: Slot) -> None:
        try:
            if slot.unsure:
                await self._find(slot)
            if slot.key:
                await self._store.commit([Expect(slot.key, slot.revision)], [Delete(slot.key)])
        except Unavailable:
            # Tried again at the next `tidy`: freeing twice is harmless.
            return
        # If the revision differs, another holds it, and it must not be freed.
        self._freeing.discard(slot)

    async def _find(self, slot: Slot) -> None:
        for entry in (await self._store.list(_prefix(slot))).entries:
            if _read(entry).holder == slot.holder:
                slot.key, slot.revision = entry.key, entry.revision
        slot.unsure = False

    def _value(self, slot: Slot) -> bytes:
        lost = 0.0
        if slot.lost_s is not None:
            lost = self._clock.now().timestamp() - (self._clock.monotonic() - slot.lost_s)
        value = {"session": slot.session, "holder": slot.holder, "lost": lost}
        return json.dumps(value | {"replica": self._replica}).encode()


def _expected(prefix: str, entries: tuple[Entry, ...], chosen: str, limit: int) -> list[Expect]:
    """The chosen key as it was listed, and the others as far as a commit has room.

    The chosen one alone keeps the count exact. With all of them, one session that is named at two
    replicas at the same time does not take two slots.
    """
    there = {entry.key: entry.revision for entry in entries}
    keys = [chosen, *(f"{prefix}{number}" for number in range(min(limit, _MOST_EXPECTED)))]
    return [Expect(key, there.get(key, 0)) for key in dict.fromkeys(keys)]


def _prefix(slot: Slot) -> str:
    return f"{PREFIX}{slot.kind.value}/{caller_key(slot.sub)}/"


def _read(entry: Entry) -> _Written:
    try:
        found = json.loads(entry.value)
        session, holder, lost = found["session"], found["holder"], found["lost"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Written()
    if isinstance(session, str) and isinstance(holder, str) and isinstance(lost, int | float):
        return _Written(session, holder, float(lost))
    return _Written()
