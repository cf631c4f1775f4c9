"""Shares in the state store: one key each, `shares/USER/ALLOCATION`, with the end in its value.

Lookups read a watched view and never wait for the store; `newest_with` reads one user's shares from
the store. A share ends by time even if its key still exists. `begin` removes expired keys, at most
once an hour.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import quote

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.sharing import Share
from lattice.domain.source import Source
from lattice.domain.state import Delete, Entry, Expect, StateStore, StateView

SHARES = "shares/"
MOST_SHARES = 20_000
_SWEEP_EVERY_S = 3600.0
_MOST_SWEPT = 100


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
        """The source of the view."""
        return self._view.source

    @property
    def count(self) -> int:
        """Number of shares as last seen, including expired ones that are not yet removed."""
        self._look()
        return len(self._read)

    def with_user(self, user: str) -> tuple[Share, ...]:
        """Return the shares that this user has from others."""
        self._look()
        return self._current(self._by_user.get(user, ()))

    def of_owner(self, owner: str) -> tuple[Share, ...]:
        """Return the shares that this owner has given."""
        self._look()
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

    def _look(self) -> None:
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
        self._look()
        moment = self._clock.now()
        old = [(key, told[0]) for key, told in self._read.items() if told[1].until <= moment]
        with suppress(Unavailable):
            for key, revision in old[:_MOST_SWEPT]:
                await self._state.commit([Expect(key, revision)], [Delete(key)])


def share_of(entry: Entry) -> Share | None:
    """Return the share in a record, or None if it can't be parsed: then it shares nothing."""
    try:
        told = json.loads(entry.value)
        return Share(
            allocation=str(told["allocation"]),
            owner=str(told["owner"]),
            user=str(told["user"]),
            since=datetime.fromtimestamp(told["since"], UTC),
            until=datetime.fromtimestamp(told["until"], UTC),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _written(share: Share) -> bytes:
    told = {
        "allocation": share.allocation,
        "owner": share.owner,
        "user": share.user,
        "since": int(share.since.timestamp()),
        "until": int(share.until.timestamp()),
    }
    return json.dumps(told, separators=(",", ":")).encode()


def _key(share: Share) -> str:
    return f"{SHARES}{_word(share.user)}/{share.allocation}"


def _word(user: str) -> str:
    return quote(user, safe="")
