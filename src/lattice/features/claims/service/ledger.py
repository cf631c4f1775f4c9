"""The records of claims in the state store, and the commits that change them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lattice.domain.claim import (
    FENCE,
    HELD,
    MOST_PAST,
    PAST,
    BadClaimRecord,
    ClaimSet,
    NodeClaim,
    read_claim,
    written_claim,
)
from lattice.domain.state import Change, Delete, Entry, Expect, Put, StateStore, StateView

_log = logging.getLogger("lattice.claims")
_SWEPT_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class ClaimReading:
    """The claims in force, with the revisions that a change has to expect."""

    claims: ClaimSet
    """Held ones: there may be many past ones, and nobody decides by those."""
    revisions: Mapping[str, int] = field(default_factory=dict)
    """Of held claims by id."""
    fence: int = 0


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One held claim with the revision of its record."""

    claim: NodeClaim
    revision: int


class ClaimLedger:
    """Reads and commits. Every method raises `Unavailable` while the store can't agree."""

    def __init__(self, state: StateStore) -> None:
        """`state` verifies what it reads: who can write to etcd must not make a claim."""
        self._state = state

    async def read(self) -> ClaimReading:
        # The fence first: a claim that is made in between changes it.
        fence = await self._state.get(FENCE)
        entries = {each.key: each for each in (await self._state.list(HELD)).entries}
        return ClaimReading(
            claims_in(entries),
            {key.removeprefix(HELD): each.revision for key, each in entries.items()},
            fence.revision if fence else 0,
        )

    async def find(self, claim_id: str) -> ClaimRecord | None:
        """A held claim as it is now; None if there is none, or none that can be read."""
        entry = await self._state.get(HELD + claim_id)
        if entry is None:
            return None
        try:
            return ClaimRecord(read_claim(claim_id, entry.value), entry.revision)
        except BadClaimRecord:
            return None

    async def add(self, claim: NodeClaim, reading: ClaimReading) -> ClaimRecord | None:
        """Record a new claim; None if another was made since the reading."""
        key = HELD + claim.id
        revision = await self._state.commit(
            [Expect(FENCE, reading.fence), Expect(key, 0)],
            [Put(FENCE, claim.id.encode()), Put(key, written_claim(claim))],
        )
        return None if revision is None else ClaimRecord(claim, revision)

    async def change(self, held: ClaimRecord, claim: NodeClaim) -> ClaimRecord | None:
        """Record its next step; None if somebody else changed it first."""
        key = HELD + claim.id
        revision = await self._state.commit(
            [Expect(key, held.revision)], [Put(key, written_claim(claim))]
        )
        return None if revision is None else ClaimRecord(claim, revision)

    async def end(self, held: ClaimRecord) -> bool:
        """Remove it in one commit, and keep it as a past one unless Slurm never had it."""
        claim = held.claim
        changes: list[Change] = [Delete(HELD + claim.id)]
        if not claim.undone:
            past = replace(claim, until=claim.stepped)
            changes.append(Put(PAST + claim.id, written_claim(past)))
        expected = [Expect(HELD + claim.id, held.revision)]
        return await self._state.commit(expected, changes) is not None

    async def sweep(self) -> None:
        """Remove the oldest past claims beyond the limit."""
        entries = (await self._state.list(PAST)).entries
        if len(entries) <= MOST_PAST:
            return
        past = claims_in({each.key: each for each in entries}).past
        by_age = sorted(past, key=lambda each: each.until)
        gone = by_age[: max(0, len(by_age) - MOST_PAST)]
        for at in range(0, len(gone), _SWEPT_AT_ONCE):
            part = gone[at : at + _SWEPT_AT_ONCE]
            await self._state.commit([], [Delete(PAST + each.id) for each in part])


KnownClaims: TypeAlias = dict[str, tuple[bytes, NodeClaim]]
"""Claims by key, each with the value that it was read from."""


def claims_in(entries: Mapping[str, Entry], known: KnownClaims | None = None) -> ClaimSet:
    """The claims in these records. One that can't be read gives no right.

    `known` has those of an earlier call, and gets those of this one.
    """
    known = {} if known is None else known
    for gone in known.keys() - entries.keys():
        del known[gone]
    held: list[NodeClaim] = []
    past: list[NodeClaim] = []
    unreadable: set[str] = set()
    for key, entry in entries.items():
        is_held = key.startswith(HELD)
        if not is_held and not key.startswith(PAST):
            continue
        claim_id = key.removeprefix(HELD if is_held else PAST)
        before = known.get(key)
        if before is None or before[0] != entry.value:
            known.pop(key, None)
            try:
                before = known[key] = (entry.value, read_claim(claim_id, entry.value))
            except BadClaimRecord as problem:
                _log.error("a claim gives no right", extra={"why": str(problem)})
                if is_held:
                    unreadable.add(claim_id)
                continue
        (held if is_held else past).append(before[1])
    return ClaimSet(tuple(held), tuple(past), frozenset(unreadable))


class ClaimBook:
    """Implements the port `Claims` from a watched view of the signed records."""

    def __init__(self, view: StateView) -> None:
        self._view = view
        self._entries: Mapping[str, Entry] | None = None
        self._claims = ClaimSet()
        self._known: KnownClaims = {}
        """There may be thousands of past ones, which do not change."""

    def claims(self) -> ClaimSet:
        """All claims as last read. Raises `Unavailable` before the first reading."""
        entries = self._view.entries
        if entries is not self._entries:
            self._claims, self._entries = claims_in(entries, self._known), entries
        return self._claims
