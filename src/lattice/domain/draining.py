"""Which nodes were drained for their failures: what is written down, and how it may change. Pure.

One key tells of all of them, `drains`: so the servers agree on each and on how many there were.

The invariant: **a node is drained at most once for one failure, and no more nodes than are allowed
within an hour.**
- Who wants to drain a node claims it first, expecting the revision he read. Who loses does nothing.
- A claim counts towards the hour whether the drain works or not. One that did not work may be taken
  up again, by anyone, after a while; it counts once.
- A claim stays while the node is in failure, so that a node which an operator put back is left to
  him. It goes once the node is seen sound: its next failure is another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

LEDGER = "drains"
HOUR_S = 3600.0
AGAIN_AFTER_S = 60.0
"""So long a drain that did not work, or whose server died, is left alone."""
MOST_CLAIMS = 500
"""The key stays small; more nodes than that in failure at once are nobody's to drain by rule."""


class BadLedger(Exception):
    """A value under the key that is not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One node that is drained, or about to be."""

    tried: float
    """Wall time of the last try, in Unix seconds."""
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All claims that stand, and when the last hour's were made."""

    claims: Mapping[str, Claim] = field(default_factory=dict)
    """By node."""
    made: tuple[float, ...] = ()


def is_open(ledger: Ledger, node: str, now: float) -> bool:
    """True if nobody has drained the node, nor is about to."""
    claim = ledger.claims.get(node)
    if claim is None:
        return True
    # A clock that runs behind must not take up what another has just begun.
    return not claim.done and now - claim.tried >= AGAIN_AFTER_S


def has_room(ledger: Ledger, node: str, now: float, most_per_hour: int) -> bool:
    """True if one more may be drained now; what was claimed before needs no room."""
    if node in ledger.claims:
        return True
    return len(_of_hour(ledger, now)) < most_per_hour and len(ledger.claims) < MOST_CLAIMS


def claimed(ledger: Ledger, node: str, now: float) -> Ledger:
    """With the node about to be drained."""
    made = _of_hour(ledger, now)
    if node not in ledger.claims:
        made = (*made, now)
    return Ledger(claims={**ledger.claims, node: Claim(tried=now)}, made=made)


def drained(ledger: Ledger, node: str) -> Ledger:
    """With the node drained; as it is where the claim has gone meanwhile."""
    claim = ledger.claims.get(node)
    if claim is None:
        return ledger
    return replace(ledger, claims={**ledger.claims, node: replace(claim, done=True)})


def without(ledger: Ledger, sound: Collection[str]) -> Ledger:
    """Without the claims on nodes that are sound again. What was made stays made."""
    kept = {node: claim for node, claim in ledger.claims.items() if node not in sound}
    return ledger if len(kept) == len(ledger.claims) else replace(ledger, claims=kept)


def _of_hour(ledger: Ledger, now: float) -> tuple[float, ...]:
    return tuple(each for each in ledger.made if each > now - HOUR_S)


def written(ledger: Ledger) -> bytes:
    """The value of the key."""
    return msgspec.json.encode(ledger)


def read_ledger(value: bytes | None) -> Ledger:
    """The value of the key, None where there is none; raises `BadLedger`."""
    if value is None:
        return Ledger()
    try:
        return msgspec.json.decode(value, type=Ledger)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLedger(str(error)) from None
