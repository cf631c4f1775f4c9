"""Locks in the state store: one key each, `locks/KIND/TARGET`, read from a watched view.

A record that can't be parsed locks its target: it was written to lock something.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.lock import Lock, LockKind, in_force
from lattice.domain.state import Delete, Entry, Expect, StateStore, StateView


class ChangeSignal:
    """Wakes waiters on one event loop. A waiter costs nothing until there is a change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def next(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change. Cancel it if it is no longer needed."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        return waiting

    def fire(self) -> None:
        """Wake all waiters."""
        for each in tuple(self._waiting):
            if not each.done():
                each.set_result(None)


LOCKS = "locks/"
LIST_EVERY_S = 2.0
"""How often the view is reread, besides its change notifications."""
KNOWN_FOR_S = 5.0
"""Without an answer for this long, the locks count as unknown."""
_TRIES = 5


class LockBook:
    """Implements the port `Locks`, and changes locks."""

    def __init__(self, state: StateStore, view: StateView, clock: Clock) -> None:
        self._state = state
        self._view = view
        self._clock = clock
        self._entries: Mapping[str, Entry] | None = None
        self._locks: dict[tuple[LockKind, str], Lock] = {}
        self._signal = ChangeSignal()

    @property
    def current(self) -> bool:
        """False if the state store has not answered for `KNOWN_FOR_S`."""
        age_s = self._view.source.age_s
        return age_s is not None and age_s <= KNOWN_FOR_S

    def of_user(self, *names: str) -> Lock | None:
        """Return a lock of one of these users or subjects, or the lock of everything."""
        found = (self._of(LockKind.USER, name) for name in names if name)
        return next((each for each in found if each), None) or self._of(LockKind.ALL, "")

    def of_node(self, node: str) -> Lock | None:
        """Return the lock of this node, if any."""
        return self._of(LockKind.NODE, node)

    def of_session(self, session: str) -> Lock | None:
        """Return the lock of this session, if any."""
        return self._of(LockKind.SESSION, session)

    def next_change(self) -> asyncio.Future[None]:
        """Return a future that is done when a lock changes. Cancel it if no longer needed."""
        return self._signal.next()

    async def run(self) -> None:
        """Wake waiters at every change, until cancelled."""
        async with self._view.changes() as batches:
            async for _ in batches:
                self._signal.fire()

    async def newest(self) -> tuple[Lock, ...]:
        """Read the locks from the state store. Raises `Unavailable`."""
        listing = await self._state.list(LOCKS)
        return in_force((lock_of(entry) for entry in listing.entries), self._clock.now())

    async def begin(self, lock: Lock) -> None:
        """Store a lock, replacing one for the same target. Raises `Unavailable`."""
        await self._state.put(_key(lock.kind, lock.target), _written(lock))

    async def end(self, kind: LockKind, target: str) -> Lock | None:
        """Remove a lock and return it, or None if there was none. Raises `Unavailable`.

        A lock that is renewed at the same time is removed too: the unlock comes last.
        """
        key = _key(kind, target)
        for _ in range(_TRIES):
            entry = await self._state.get(key)
            if entry is None:
                return None
            if await self._state.commit([Expect(key, entry.revision)], [Delete(key)]) is not None:
                return lock_of(entry)
        raise Unavailable("Others change this lock at the same time.", hint="Try again.")

    def _of(self, kind: LockKind, target: str) -> Lock | None:
        self._read()
        lock = self._locks.get((kind, target))
        return lock if lock is not None and lock.holds(self._clock.now()) else None

    def _read(self) -> None:
        try:
            entries = self._view.entries
        except Unavailable:
            return
        if entries is self._entries:
            return
        read = [lock_of(entry) for entry in entries.values()]
        self._locks = {(each.kind, each.target): each for each in read}
        self._entries = entries


def lock_of(entry: Entry) -> Lock:
    """Return the lock in a record. The value may be damaged."""
    kind, _, target = entry.key.removeprefix(LOCKS).partition("/")
    try:
        record = json.loads(entry.value)
        return Lock(
            kind=LockKind(kind),
            target=unquote(target),
            reason=str(record["reason"]),
            by=str(record["by"]),
            since=datetime.fromtimestamp(record["since"], UTC),
            until=datetime.fromtimestamp(record["until"], UTC) if record["until"] else None,
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return Lock(
            # An unknown kind locks out everybody except those who can remove the key.
            kind=LockKind(kind) if kind in set(LockKind) else LockKind.ALL,
            target=unquote(target) if kind in set(LockKind) else "",
            reason="a lock that this server can't read",
            by="",
            since=datetime.fromtimestamp(0, UTC),
        )


def _written(lock: Lock) -> bytes:
    record = {
        "reason": lock.reason,
        "by": lock.by,
        "since": int(lock.since.timestamp()),
        "until": int(lock.until.timestamp()) if lock.until else None,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def _key(kind: LockKind, target: str) -> str:
    return f"{LOCKS}{kind.value}/{quote(target, safe='')}"
