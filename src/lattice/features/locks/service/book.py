"""Locks in the agreed state: `locks/KIND/TARGET`, one key each, read from a view that follows it.

A key that can't be read locks its target: whoever wrote it meant to shut somebody out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from lattice.base.change import ChangeSignal
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.lock import Lock, LockKind, in_force
from lattice.domain.state import Delete, Entry, Expect, StateStore, StateView

LOCKS = "locks/"
LIST_EVERY_S = 2.0
"""The view is read anew so often, besides being told of changes."""
KNOWN_FOR_S = 5.0
"""After so long without an answer nobody knows who is locked."""
_TRIES = 5


class LockBook:
    """The port `Locks`, and what changes it."""

    def __init__(self, state: StateStore, view: StateView, clock: Clock) -> None:
        self._state = state
        self._view = view
        self._clock = clock
        self._entries: Mapping[str, Entry] | None = None
        self._locks: dict[tuple[LockKind, str], Lock] = {}
        self._signal = ChangeSignal()

    @property
    def current(self) -> bool:
        """False once the agreed state has not answered for some seconds."""
        age_s = self._view.source.age_s
        return age_s is not None and age_s <= KNOWN_FOR_S

    def of_user(self, *names: str) -> Lock | None:
        """The lock of everything, or of a user with one of these names or subjects."""
        found = (self._of(LockKind.USER, name) for name in names if name)
        return next((each for each in found if each), None) or self._of(LockKind.ALL, "")

    def of_node(self, node: str) -> Lock | None:
        """The lock of this node."""
        return self._of(LockKind.NODE, node)

    def of_session(self, session: str) -> Lock | None:
        """The lock of this terminal."""
        return self._of(LockKind.SESSION, session)

    def next_change(self) -> asyncio.Future[None]:
        """Done when a lock begins or ends. Whoever no longer waits cancels it."""
        return self._signal.next()

    async def run(self) -> None:
        """Wake whoever waits for a change, until cancelled."""
        async with self._view.changes() as batches:
            async for _ in batches:
                self._signal.fire()

    async def newest(self) -> tuple[Lock, ...]:
        """Read now. Raises `Unavailable`."""
        listing = await self._state.list(LOCKS)
        return in_force((lock_of(entry) for entry in listing.entries), self._clock.now())

    async def begin(self, lock: Lock) -> None:
        """From now on; one there was for the same target is replaced."""
        await self._state.put(_key(lock.kind, lock.target), _written(lock))

    async def end(self, kind: LockKind, target: str) -> Lock | None:
        """The lock that was; None if there was none. Raises `Unavailable`.

        One that somebody renews meanwhile is ended as well: whoever unlocks comes last.
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
    """The lock that a key holds; its value may be damaged."""
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
            # A key of an unknown kind shuts everybody out but those who can remove it.
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
