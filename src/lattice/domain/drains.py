"""The record of nodes that were drained for their failures, and how it may change. Pure.

One key, `drains`, holds all of them, so the servers agree on each and on their number. The
invariant: **a node is drained at most once for one failure, and no more nodes than are allowed
within an hour.**

- A server that wants to drain a node claims it first and expects the revision that it read. If
  another server was first, it does nothing.
- A claim counts towards the hour whether the drain works or not. Any server may retry a failed
  drain after a while; it counts once.
- A claim stays while the node is in failure, so that a node which an operator returned to service
  is left alone. It is removed once the node is healthy: the next failure is another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

LEDGER = "drains"
HOUR_S = 3600.0
AGAIN_AFTER_S = 60.0
"""How long a drain is left alone that failed, or that a server began before it died."""
MOST_CLAIMS = 500
"""Keeps the key small. With more failed nodes than that, draining by rule is wrong."""


class BadLedger(Exception):
    """The value under the key is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One node that is drained or about to be."""

    tried: float
    """Wall time of the last try, in Unix seconds."""
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLedger:
    """All current claims, and the times of those made in the last hour."""

    claims: Mapping[str, Claim] = field(default_factory=dict)
    """By node."""
    made: tuple[float, ...] = ()


def is_open(ledger: DrainLedger, node: str, now: float) -> bool:
    """True if no server has drained the node or is about to."""
    claim = ledger.claims.get(node)
    if claim is None:
        return True
    # A clock that runs behind must not retry what another server has just begun.
    return not claim.done and now - claim.tried >= AGAIN_AFTER_S


def has_room(ledger: DrainLedger, node: str, now: float, most_per_hour: int) -> bool:
    """True if one more node may be drained now. A claimed node needs no room."""
    if node in ledger.claims:
        return True
    return len(_of_hour(ledger, now)) < most_per_hour and len(ledger.claims) < MOST_CLAIMS


def claimed(ledger: DrainLedger, node: str, now: float) -> DrainLedger:
    """The ledger with a claim on the node."""
    made = _of_hour(ledger, now)
    if node not in ledger.claims:
        made = (*made, now)
    return DrainLedger(claims={**ledger.claims, node: Claim(tried=now)}, made=made)


def drained(ledger: DrainLedger, node: str) -> DrainLedger:
    """The ledger with the node drained; unchanged if the claim is gone."""
    claim = ledger.claims.get(node)
    if claim is None:
        return ledger
    return replace(ledger, claims={**ledger.claims, node: replace(claim, done=True)})


def without(ledger: DrainLedger, sound: Collection[str]) -> DrainLedger:
    """The ledger without claims on healthy nodes. Their times still count for the hour."""
    remaining = {node: claim for node, claim in ledger.claims.items() if node not in sound}
    return ledger if len(remaining) == len(ledger.claims) else replace(ledger, claims=remaining)


def _of_hour(ledger: DrainLedger, now: float) -> tuple[float, ...]:
    return tuple(each for each in ledger.made if each > now - HOUR_S)


def written(ledger: DrainLedger) -> bytes:
    """The value of the key."""
    return msgspec.json.encode(ledger)


def read_ledger(value: bytes | None) -> DrainLedger:
    """Parse the value of the key; None is an empty ledger. Raises `BadLedger`."""
    if value is None:
        return DrainLedger()
    try:
        return msgspec.json.decode(value, type=DrainLedger)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLedger(str(error)) from None
