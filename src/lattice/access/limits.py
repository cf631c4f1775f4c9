"""Limits of one caller: the kinds, the numbers, the buckets. Pure.

A caller is its verified `sub`, compared exactly; nothing else in a request counts.

There are two sorts. *Sessions* are counted: so many open at once, exact over all replicas.
*Questions* are paced by a bucket (generic cell rate algorithm). It holds a minute's worth, fills
evenly, and never grants more than `burst + rate · t` in any time t. Nothing is ever queued.

`lattice.server.cluster.limits` decides where slots and buckets are kept.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from lattice.base.errors import RateLimited

MINUTE_S = 60.0
MOST_BUCKETS = 200_000
"""On one replica; about 200 bytes each."""
CLIENT_LOST_S = 30.0
"""How long a slot waits for its client to reconnect."""


class Sessions(StrEnum):
    """Counted while open."""

    ATTACH = "attach"
    STREAM_LOGS = "stream_logs"
    STREAM_METRICS = "stream_metrics"


class Questions(StrEnum):
    """Limited per minute."""

    QUERY_METRICS = "query_metrics"
    DIAGNOSTICS = "diagnostics"
    COMPARE = "compare"
    SUBMIT = "submit"
    CANCEL = "cancel"
    QUERY_AUDIT = "query_audit"
    REVIEW_AUDIT = "review_audit"
    """Each reads the whole audit log."""


Limited = Sessions | Questions

DEFAULTS: Mapping[Limited, int] = {
    Sessions.ATTACH: 5,
    Sessions.STREAM_LOGS: 10,
    Sessions.STREAM_METRICS: 5,
    Questions.QUERY_METRICS: 60,
    Questions.DIAGNOSTICS: 30,
    Questions.COMPARE: 10,
    Questions.SUBMIT: 120,
    Questions.CANCEL: 300,
    Questions.QUERY_AUDIT: 60,
    Questions.REVIEW_AUDIT: 6,
}
"""Sessions: open at once. Questions: per minute."""

_ASKED = {
    Questions.QUERY_METRICS: "metric queries",
    Questions.DIAGNOSTICS: "diagnoses",
    Questions.COMPARE: "comparisons",
    Questions.SUBMIT: "submissions",
    Questions.CANCEL: "cancellations",
    Questions.QUERY_AUDIT: "audit queries",
    Questions.REVIEW_AUDIT: "verifications and exports of the audit log",
}


class OpenSlot(Protocol):
    """The slot of an open session."""

    async def wait_gone(self) -> None:
        """Return when the session has to end: it was resumed elsewhere, or lost its slot."""

    async def client_lost(self) -> None:
        """The client has disconnected. Its slot is kept for 30 s, then the session has to end."""

    async def client_back(self) -> None:
        """The client is connected again, at this replica."""

    async def release(self) -> None:
        """The session has ended. Safe to call after `wait_gone`."""


class CallerLimits(Protocol):
    """The limits as features use them. `sub` is the verified caller's, from the token."""

    async def open(self, sub: str, kind: Sessions, session: str) -> OpenSlot:
        """A slot for a session, or `RateLimited`. A resumed session has the same name."""

    async def ask(self, sub: str, kind: Questions) -> None:
        """Permit a question, or raise `RateLimited`."""


@dataclass(frozen=True, slots=True)
class LimitTable:
    """The limits in force: those of a named caller, else those of everyone."""

    everyone: Mapping[Limited, int] = field(default_factory=lambda: dict(DEFAULTS))
    callers: Mapping[str, Mapping[Limited, int]] = field(default_factory=dict)

    def of(self, sub: str, kind: Limited) -> int:
        own = self.callers.get(sub, {})
        return own[kind] if kind in own else self.everyone[kind]


def too_many_sessions(limit: int, have: int) -> RateLimited:
    """The refusal of one more session. It names no time, because no end is known."""
    shown = f"{max(have, limit)}/{limit}"
    return RateLimited(
        f"maximum concurrent sessions reached ({shown}). "
        "Close an existing session to open a new one."
    )


def too_many_questions(kind: Questions, limit: int, wait_s: float) -> RateLimited:
    """The refusal of one more question, with the whole seconds until one is granted."""
    if limit == 0:
        return RateLimited(f"{_ASKED[kind]} are switched off for you.")
    after_s = max(1, math.ceil(wait_s))
    return RateLimited(
        f"Too many {_ASKED[kind]}: {limit} a minute are allowed.",
        hint=f"Try again in {after_s} s.",
        retry_after_s=after_s,
    )


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """Granted, or the seconds until it would be."""

    granted: bool
    wait_s: float = 0.0


def taken(full_at: float, now: float, per_minute: int) -> tuple[float, LimitVerdict]:
    """Take one question from a bucket: when it would be full again, and the verdict.

    `full_at` is the whole state of a bucket. A full one (`full_at <= now`) equals a new one.
    """
    if per_minute <= 0:
        return full_at, LimitVerdict(False, MINUTE_S)
    step_s = MINUTE_S / per_minute
    would_be = max(full_at, now) + step_s
    wait_s = would_be - now - MINUTE_S
    # A small tolerance, because the steps of a minute don't add up to exactly a minute.
    if wait_s > step_s * 1e-6:
        return full_at, LimitVerdict(False, wait_s)
    return would_be, LimitVerdict(True)


class Buckets:
    """The buckets of one replica, at most `most`. Not shared, so it needs no lock.

    A bucket that is unused for a minute is full, and a full one equals none. Those are dropped
    first, without loss. If all are in use, the least recently used one is dropped, and its caller
    gets a fresh one; `early` counts that.
    """

    def __init__(self, most: int = MOST_BUCKETS) -> None:
        self._most = most
        self._full_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self.early = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, sub: str, kind: str, per_minute: int, now: float) -> LimitVerdict:
        """Take one question for this caller."""
        key = (sub, kind)
        full_at, verdict = taken(self._full_at.get(key, now), now, per_minute)
        if full_at > now:
            self._full_at[key] = full_at
            self._full_at.move_to_end(key)
        self._drop(now)
        return verdict

    def _drop(self, now: float) -> None:
        # Two at a time, so that it shrinks faster than it can grow and no call pays for all.
        for _ in range(2):
            oldest = next(iter(self._full_at.items()), None)
            if oldest is None:
                return
            if oldest[1] > now:
                if len(self._full_at) <= self._most:
                    return
                self.early += 1
            del self._full_at[oldest[0]]


def caller_key(sub: str) -> str:
    """A caller in a key of the state store: any text becomes 32 hex digits."""
    return hashlib.sha256(sub.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def owner_of(sub: str, kind: Questions, replicas: Iterable[str]) -> str | None:
    """The replica that holds this bucket: the same on every replica with the same list.

    Rendezvous hashing: when a replica comes or goes, only its own buckets move.
    """
    return max(sorted(replicas), key=lambda each: _weight(each, sub, kind), default=None)


def _weight(replica: str, sub: str, kind: Questions) -> bytes:
    text = f"{replica}\0{kind.value}\0{sub}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).digest()
