"""How much of one kind of work a replica does at once, for one caller and in all. Pure.

Unlike sessions this is counted on each replica by itself, for it protects that replica's work.
Nothing is queued: whoever comes too early is asked to come again in a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lattice.base.errors import RateLimited

_RETRY_AFTER_S = 1


class Admission:
    """Counts what is under way."""

    def __init__(
        self,
        kind: str,
        *,
        per_caller: int,
        in_all: int,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`kind` is what `refused` is given at every refusal."""
        self._kind = kind
        self._per_caller = per_caller
        self._in_all = in_all
        self._refused = refused
        self._callers: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many are under way."""
        return self._callers.total()

    @contextmanager
    def admitted(self, sub: str) -> Iterator[None]:
        """One more for this caller while the context lasts. Raises `RateLimited`."""
        if self._callers[sub] >= self._per_caller:
            raise self._refusal(f"{self._per_caller} of yours are under way on this server")
        if self.open >= self._in_all:
            raise self._refusal(f"this server does {self._in_all} at once for everybody")
        self._callers[sub] += 1
        try:
            yield
        finally:
            self._callers[sub] -= 1
            if not self._callers[sub]:
                del self._callers[sub]

    def _refusal(self, why: str) -> RateLimited:
        self._refused(self._kind)
        return RateLimited(
            f"Too many requests of this kind: {why}.",
            hint=f"Try again in {_RETRY_AFTER_S} s.",
            retry_after_s=_RETRY_AFTER_S,
        )
