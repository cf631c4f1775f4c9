"""What every sign-in without an identity provider has: a limit, and tokens of the server's own."""

from __future__ import annotations

import math
from typing import Protocol

from lattice.access.limits import Buckets
from lattice.base.clock import Clock
from lattice.base.errors import RateLimited

_PER_MINUTE = 300
"""Sign-ins from one address, and a minute's worth at once: a login host has many users."""
_MOST_ADDRESSES = 20_000


class TokenIssuer(Protocol):
    """Issues the server's own tokens."""

    audience: str

    def issue(self, user: str, origin: str, end: int | None = None) -> tuple[str, int]:
        """A token and its lifetime in seconds; it does not outlive `end`, seconds since 1970."""


class SignInPace:
    """Limits sign-ins of one kind: each costs a process or questions, and nobody is known yet."""

    def __init__(self, kind: str, clock: Clock) -> None:
        """`kind` as people read it."""
        self._kind = kind
        self._clock = clock
        self._buckets = Buckets(_MOST_ADDRESSES)

    def take(self, address: str) -> None:
        """Count one from this address. Raises `RateLimited`."""
        verdict = self._buckets.take(address, self._kind, _PER_MINUTE, self._clock.monotonic())
        if not verdict.granted:
            after_s = max(1, math.ceil(verdict.wait_s))
            raise RateLimited(
                f"Too many sign-ins by {self._kind} from {address}: {_PER_MINUTE} a minute.",
                hint=f"Try again in {after_s} s.",
                retry_after_s=after_s,
            )
