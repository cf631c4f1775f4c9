"""Limits of the work for logs: of one page, of one caller, of a replica. No I/O.

Each replica counts by itself, because the limits protect its own work. Nothing is queued: a request
over the limit is refused and may retry after a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lattice.base.clock import Clock
from lattice.base.errors import RateLimited
from lattice.base.turns import Turns
from lattice.features.logs.model import LogRecord
from lattice.features.logs.service.search_process import SearchProcesses

_RETRY_AFTER_S = 1


class Admission:
    """Counts requests of one kind in progress."""

    def __init__(
        self,
        kind: str,
        *,
        per_caller: int,
        in_all: int,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`refused` is called with `kind` at every refusal."""
        self._kind = kind
        self._per_caller = per_caller
        self._in_all = in_all
        self._refused = refused
        self._callers: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many are in progress."""
        return self._callers.total()

    @contextmanager
    def admitted(self, sub: str) -> Iterator[None]:
        """Count one for this caller while the context lasts. Raises `RateLimited`."""
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


_PER_STREAM_BYTES = 1024 * 1024
"""Fetched from each stream before the merge can start, and worth reading to its end."""
_PAGES_A_CALLER, _PAGES = 4, 32
_DOWNLOADS_A_CALLER, _DOWNLOADS = 4, 128


@dataclass(frozen=True, slots=True)
class PageBudget:
    """The work for one page. The page ends after the group that reaches a limit."""

    answer_bytes: int = 4 * 1024 * 1024
    scanned_bytes: int = 64 * 1024 * 1024
    """Text that is in the page or was filtered out."""
    seconds: float = 5.0


class PageMeter:
    """Decides when a page is full, or was enough work."""

    def __init__(self, budget: PageBudget, limit: int, streams: int, clock: Clock) -> None:
        """`limit` is the number of lines."""
        self._budget = budget
        self._limit = limit
        self._clock = clock
        self._lines = self._bytes = 0
        # To open many streams for every page would be more work than to read on.
        self._most_scanned = max(budget.scanned_bytes, _PER_STREAM_BYTES * (streams - 1))
        self._begun: float | None = None

    def is_full_with(self, group: list[LogRecord], scanned_bytes: int) -> bool:
        """Count a group. The time starts with the first group, so each page makes progress."""
        now = self._clock.monotonic()
        self._begun = now if self._begun is None else self._begun
        for each in group:
            if each.type == "lines":
                self._lines += each.count
                self._bytes += len(each.text)
        return (
            self._lines >= self._limit
            or self._bytes >= self._budget.answer_bytes
            or scanned_bytes >= self._most_scanned
            or now - self._begun >= self._budget.seconds
        )


def _pages(refused: Callable[[str], None] = lambda _: None) -> Admission:
    return Admission("read_logs", per_caller=_PAGES_A_CALLER, in_all=_PAGES, refused=refused)


def _downloads(refused: Callable[[str], None] = lambda _: None) -> Admission:
    return Admission(
        "read_raw_log", per_caller=_DOWNLOADS_A_CALLER, in_all=_DOWNLOADS, refused=refused
    )


@dataclass(frozen=True, slots=True)
class WorkBounds:
    """The limits for reading logs on a replica."""

    budget: PageBudget = field(default_factory=PageBudget)
    turns: Turns = field(default_factory=Turns)
    pages: Admission = field(default_factory=_pages)
    downloads: Admission = field(default_factory=_downloads)
    search: SearchProcesses | None = None
    """None: searches run in the threads of `turns`."""

    @classmethod
    def reporting(cls, refused: Callable[[str], None], search: SearchProcesses) -> WorkBounds:
        """The default limits; `refused` is called with the kind of every refusal."""
        return cls(pages=_pages(refused), downloads=_downloads(refused), search=search)
