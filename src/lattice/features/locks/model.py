"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.lock import Lock

LONGEST_REASON = 200
LONGEST_TARGET = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOrder:
    """What to lock, why, and for how many seconds; 0 means until it is unlocked."""

    kind: str
    target: str = ""
    reason: str = ""
    duration_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockOrder:
    """Which lock to end."""

    kind: str
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockList:
    """Locks in force."""

    locks: tuple[Lock, ...] = ()
