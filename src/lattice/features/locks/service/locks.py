"""Administrators lock, unlock and list locks. Every act is logged."""

from __future__ import annotations

from datetime import timedelta

from lattice.access.actor import Actor
from lattice.access.journal import ActJournal
from lattice.access.locks import may_lock
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.domain.accounts import AccountTree
from lattice.domain.lock import Lock, LockKind
from lattice.domain.scheduler import Scheduler
from lattice.features.locks.model import (
    LONGEST_REASON,
    LONGEST_TARGET,
    LockList,
    LockOrder,
    UnlockOrder,
)
from lattice.features.locks.service.book import LockBook

MOST_LOCKS = 1000
_LONGEST_S = 366 * 24 * 3600
_KINDS = ", ".join(LockKind)


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
        if len(await self._book.newest()) >= MOST_LOCKS:
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
