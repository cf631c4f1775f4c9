"""Locks in the state store, and administrators who change and list them. Every act is logged.

Each lock has one key, `locks/KIND/TARGET`, read from a watched view. A record that can't be parsed
locks its target: it was written to lock something.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.access.locks import may_lock
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.domain.accounts import AccountTree
from lattice.domain.lock import Lock, LockKind, in_force
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import Delete, Entry, Expect, StateStore, StateView
from lattice.features.locks.model import (
    LONGEST_REASON,
    LONGEST_TARGET,
    LockList,
    LockOrder,
    UnlockOrder,
)

LOCKS = "locks/"
LIST_EVERY_S = 2.0
"""How often the view is reread, besides its change notifications."""
KNOWN_FOR_S = 5.0
"""Without an answer for this long, the locks count as unknown."""
_TRIES = 5
MOST_LOCKS = 1000
_LONGEST_S = 366 * 24 * 3600
_KINDS = ", ".join(LockKind)


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
        for each in tuple(self._waiting):
            if not each.done():
                each.set_result(None)


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
        return self._of(LockKind.NODE, node)

    def of_session(self, session: str) -> Lock | None:
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


class LockService:
    """For operators and system admins, and for tenant admins over users of their tenant."""

    def __init__(
        self, book: LockBook, scheduler: Scheduler, clock: Clock, journal: ActJournal
    ) -> None:
        self._book = book
        self._scheduler = scheduler
        self._clock = clock
        self._journal = journal

    async def locks(self, actor: Actor) -> LockList:
        """Return the locks that the caller may end."""
        accounts = self._accounts()
        locks = await self._book.newest()
        return LockList(
            locks=tuple(each for each in locks if may_lock(actor, each.kind, each.target, accounts))
        )

    async def lock(self, actor: Actor, order: LockOrder) -> LockList:
        """Lock from now on. Locking again replaces the reason and the end."""
        kind, target = self._target(actor, order.kind, order.target)
        if kind is LockKind.USER and target in {actor.sub, actor.user}:
            raise UsageError("That would lock you out.", hint="Name somebody else.")
        reason = " ".join(order.reason.split())
        if not reason or len(reason) > LONGEST_REASON:
            raise UsageError(
                f"A lock needs a reason of at most {LONGEST_REASON} letters.",
                hint="Whoever is locked out reads it: --reason TEXT.",
            )
        if not 0 <= order.duration_s <= _LONGEST_S:
            raise UsageError("A lock lasts a year at most.", hint="Or until it is unlocked.")
        now = self._clock.now().replace(microsecond=0)
        lock = Lock(
            kind=kind,
            target=target,
            reason=reason.rstrip("."),
            by=actor.sub,
            since=now,
            until=now + timedelta(seconds=order.duration_s) if order.duration_s else None,
        )
        others = [each for each in await self._book.newest() if each.name != lock.name]
        if len(others) >= MOST_LOCKS:
            raise Unavailable(
                "There are as many locks as there can be.", hint="Unlock what need not be locked."
            )
        await self._book.begin(lock)
        self._journal.acted("lock", lock.name, actor.sub, reason)
        return LockList(locks=(lock,))

    async def unlock(self, actor: Actor, order: UnlockOrder) -> LockList:
        """End a lock now. Raises `NotFound` if there is none."""
        kind, target = self._target(actor, order.kind, order.target)
        lock = await self._book.end(kind, target)
        if lock is None:
            raise NotFound(
                f"There is no lock of {kind.value} {target}".rstrip() + ".",
                hint="`lattice admin locks` lists those there are.",
            )
        self._journal.acted("unlock", lock.name, actor.sub, "")
        return LockList(locks=(lock,))

    def _target(self, actor: Actor, kind_name: str, target: str) -> tuple[LockKind, str]:
        try:
            kind = LockKind(kind_name)
        except ValueError:
            raise UsageError(f"One locks {_KINDS}.") from None
        if (kind is LockKind.ALL) != (target == ""):
            named = "nothing behind it" if kind is LockKind.ALL else f"the {kind.value} behind it"
            raise UsageError(f"`{kind.value}` needs {named}.")
        if len(target) > LONGEST_TARGET or not target.isprintable():
            raise UsageError("That is no name.")
        if not may_lock(actor, kind, target, self._accounts()):
            raise PermissionRefused(
                f"Your role {actor.role} may not lock that.",
                hint="A tenant admin locks users who work in her tenant and in no other.",
            )
        return kind, target

    def _accounts(self) -> AccountTree:
        try:
            return self._scheduler.live().cluster.accounts
        except Unavailable:
            # Operators can lock while Slurm is down; tenant admins have no tenant then.
            return AccountTree()
