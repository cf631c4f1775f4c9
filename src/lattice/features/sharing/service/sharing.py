"""An owner shares an allocation, ends a share, and sees who reads.

Each share has one key in the state store, `shares/USER/ALLOCATION`, with the end in its value.
Lookups read a watched view and never wait for the store; `newest_with` reads one user's shares from
the store. A share ends by time even if its key still exists. `begin` removes expired keys, at most
once an hour.

Every lookup uses a permission that only owners have. Another's allocation is therefore not found,
whatever the caller's role.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder, Found
from lattice.access.journal import ActJournal
from lattice.access.permission import Permission
from lattice.base.clock import Clock
from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.base.moment import age
from lattice.domain.allocation import Allocation, Reference, parse_reference
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadNotes, Share
from lattice.domain.source import Source
from lattice.domain.state import Delete, Entry, Expect, StateStore, StateView
from lattice.features.sharing.model import LONGEST_USER, AllocationSharing, ShareTerms

SHARES = "shares/"
MOST_SHARES = 20_000
_SWEEP_EVERY_S = 3600.0
_MOST_SWEPT = 100
MOST_OF_OWNER = 500
MOST_OF_ALLOCATION = 100
_SHORTEST = timedelta(minutes=1)
_MOST_TASKS = 100
"""Tasks of an array with their readers in the answer."""


class SharedAllocations:
    """Implements the port `Shares`, and changes shares."""

    def __init__(self, state: StateStore, view: StateView, clock: Clock) -> None:
        self._state = state
        self._view = view
        self._clock = clock
        self._entries: Mapping[str, Entry] | None = None
        self._read: dict[str, tuple[int, Share]] = {}
        self._by_user: dict[str, list[Share]] = {}
        self._by_owner: dict[str, list[Share]] = {}
        self._swept_s = float("-inf")

    @property
    def source(self) -> Source:
        return self._view.source

    @property
    def count(self) -> int:
        """Number of shares as last seen, including expired ones that are not yet removed."""
        self._index()
        return len(self._read)

    def with_user(self, user: str) -> tuple[Share, ...]:
        """Return the shares that this user has from others."""
        self._index()
        return self._current(self._by_user.get(user, ()))

    def of_owner(self, owner: str) -> tuple[Share, ...]:
        """Return the shares that this owner has given."""
        self._index()
        return self._current(self._by_owner.get(owner, ()))

    async def newest_with(self, user: str) -> tuple[Share, ...]:
        """Read a user's shares from the state store. Raises `Unavailable`."""
        listing = await self._state.list(f"{SHARES}{_word(user)}/")
        found = (share_of(entry) for entry in listing.entries)
        return self._current(share for share in found if share and share.user == user)

    async def begin(self, share: Share) -> None:
        """Store a share, replacing one for the same user and allocation. Raises `Unavailable`."""
        await self._sweep()
        await self._state.put(_key(share), _written(share))

    async def end(self, share: Share) -> None:
        """Remove a share. Raises `Unavailable`."""
        await self._state.commit([], [Delete(_key(share))])

    def _current(self, shares: Iterable[Share]) -> tuple[Share, ...]:
        now = self._clock.now()
        return tuple(share for share in shares if share.until > now)

    def _index(self) -> None:
        """Index the view's entries, once per change."""
        try:
            entries = self._view.entries
        except Unavailable:
            return
        if entries is self._entries:
            return
        before, self._read = self._read, {}
        self._by_user, self._by_owner = {}, {}
        for key, entry in entries.items():
            known = before.get(key)
            share = known[1] if known and known[0] == entry.revision else share_of(entry)
            if share is None:
                continue
            self._read[key] = entry.revision, share
            self._by_user.setdefault(share.user, []).append(share)
            self._by_owner.setdefault(share.owner, []).append(share)
        self._entries = entries

    async def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept_s < _SWEEP_EVERY_S:
            return
        self._swept_s = now
        self._index()
        moment = self._clock.now()
        old = [(key, known) for key, (known, share) in self._read.items() if share.until <= moment]
        with suppress(Unavailable):
            for key, revision in old[:_MOST_SWEPT]:
                await self._state.commit([Expect(key, revision)], [Delete(key)])


def share_of(entry: Entry) -> Share | None:
    """Return the share in a record, or None if it can't be parsed: then it shares nothing."""
    try:
        document = json.loads(entry.value)
        return Share(
            allocation=str(document["allocation"]),
            owner=str(document["owner"]),
            user=str(document["user"]),
            since=datetime.fromtimestamp(document["since"], UTC),
            until=datetime.fromtimestamp(document["until"], UTC),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _written(share: Share) -> bytes:
    document = {
        "allocation": share.allocation,
        "owner": share.owner,
        "user": share.user,
        "since": int(share.since.timestamp()),
        "until": int(share.until.timestamp()),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _key(share: Share) -> str:
    return f"{SHARES}{_word(share.user)}/{share.allocation}"


def _word(user: str) -> str:
    return quote(user, safe="")


class SharingService:
    """Serves the owners of allocations."""

    def __init__(
        self,
        scheduler: Scheduler,
        finder: AllocationFinder,
        shares: SharedAllocations,
        notes: ReadNotes,
        clock: Clock,
        terms: ShareTerms,
        journal: ActJournal,
    ) -> None:
        self._scheduler = scheduler
        self._finder = finder
        self._shares = shares
        self._notes = notes
        self._clock = clock
        self.terms = terms
        self._journal = journal

    async def sharing(self, actor: Actor, name: str) -> AllocationSharing:
        """Return the shares and the other readers of an allocation."""
        found = await self._finder.find(actor, Permission.VIEW_SHARES, name)
        if not self._shares.source.ok:
            raise Unavailable(
                f"With whom {name} is shared can't be told now: the agreed state does not answer.",
                hint="Try again in a minute.",
            )
        return await self._answer(found, self._shares_of(found))

    async def share(
        self, actor: Actor, name: str, user: str, duration_s: int = 0
    ) -> AllocationSharing:
        """Let a user read an allocation. Sharing again sets a new end."""
        lasts = self._duration(duration_s)
        found = await self._finder.find(actor, Permission.SHARE_ALLOCATION, name)
        self._check_user(actor, user)
        reference = _identity(parse_reference(name), found.allocation)
        now = self._clock.now().replace(microsecond=0)
        share = Share(
            allocation=str(reference),
            owner=found.allocation.user,
            user=user,
            since=now,
            until=now + lasts,
        )
        others = [each for each in self._shares_of(found) if not _same(each, share)]
        self._check_room(share, len(others))
        await self._shares.begin(share)
        detail = f"with {user} for {age(lasts.total_seconds())}"
        job = found.allocation
        self._journal.acted(
            "share", share.allocation, actor.sub, detail, owner=job.user, tenant=job.tenant
        )
        return await self._answer(found, (share, *others))

    async def unshare(
        self, actor: Actor, name: str, user: str, *, repeated: bool = False
    ) -> AllocationSharing:
        """End every share by which this user may read it, including that of its whole array.

        With `repeated` the client retries after a lost answer, so finding no share is no error.
        """
        found = await self._finder.find(actor, Permission.SHARE_ALLOCATION, name)
        newest = await self._shares.newest_with(user)
        ended = [each for each in newest if self._reaches(each, found)]
        if not ended and not repeated:
            raise NotFound(
                f"Allocation {name} is not shared with {user[:LONGEST_USER]}.",
                hint=f"`lattice share {name}` lists with whom it is.",
            )
        for each in ended:
            await self._shares.end(each)
            self._journal.acted(
                "unshare",
                each.allocation,
                actor.sub,
                f"with {user}",
                owner=found.allocation.user,
                tenant=found.allocation.tenant,
            )
        left = tuple(each for each in self._shares_of(found) if each.user != user)
        return await self._answer(found, left)

    async def _answer(self, found: Found, shares: tuple[Share, ...]) -> AllocationSharing:
        family = (found.allocation, *found.siblings)[:_MOST_TASKS]
        return AllocationSharing(
            allocation=found.allocation.ref,
            shares=tuple(sorted(shares, key=lambda each: (each.user, each.allocation))),
            readers=await self._notes.of(family),
        )

    def _shares_of(self, found: Found) -> tuple[Share, ...]:
        own = self._shares.of_owner(found.allocation.user)
        return tuple(share for share in own if self._reaches(share, found))

    def _reaches(self, share: Share, found: Found) -> bool:
        now = self._clock.now()
        return any(share.covers(each, now) for each in (found.allocation, *found.siblings))

    def _duration(self, duration_s: int) -> timedelta:
        if not duration_s:
            return min(self.terms.usual, self.terms.longest)
        longest = self.terms.longest
        if not _SHORTEST.total_seconds() <= duration_s <= longest.total_seconds():
            raise UsageError(
                f"An allocation can't be shared for {age(max(duration_s, 0))}.",
                hint=f"From 1 minute to {age(longest.total_seconds())}; share it again when it is "
                "over.",
            )
        return timedelta(seconds=duration_s)

    def _check_user(self, actor: Actor, user: str) -> None:
        if user == actor.user:
            raise UsageError("It is yours already.", hint="Name somebody else.")
        known = self._scheduler.live().cluster.accounts.members
        if not known:
            raise Unavailable(
                "Which users there are can't be told now: Slurm's accounting has not answered.",
                hint="Try again in a minute.",
            )
        if user not in known:
            raise UsageError(
                f"Slurm knows no user {user[:LONGEST_USER]!r} here.",
                hint="Name the Unix user, as `squeue` shows it.",
            )

    def _check_room(self, share: Share, with_others: int) -> None:
        own = self._shares.of_owner(share.owner)
        if any(_same(each, share) for each in own):
            return
        if with_others >= MOST_OF_ALLOCATION or len(own) >= MOST_OF_OWNER:
            raise UsageError(
                f"You share as much as one may: {with_others} times this allocation, {len(own)} "
                "in all.",
                hint="End a share with `lattice unshare`, or share an array as a whole.",
            )
        if self._shares.count >= MOST_SHARES:
            raise Unavailable(
                "This cluster holds as many shares as it can.",
                hint="Try again tomorrow: shares that are over make room.",
            )


def _same(one: Share, other: Share) -> bool:
    return (one.user, one.allocation) == (other.user, other.allocation)


def _identity(reference: Reference, allocation: Allocation) -> Reference:
    if allocation.first_submitted is None:
        raise Unavailable(
            f"When {allocation.id} was first submitted is not known yet, and its id alone might "
            "come to mean another.",
            hint="Try again in a minute: Slurm's accounting has it.",
        )
    return replace(reference, submitted=allocation.first_submitted)
