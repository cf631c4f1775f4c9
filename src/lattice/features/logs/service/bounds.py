"""How much work reading logs may be: for one page, for one caller, for a replica. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lattice.access.admission import Admission
from lattice.base.clock import Clock
from lattice.base.turns import Turns
from lattice.features.logs.model import LogRecord
from lattice.features.logs.service.search import Search

_PER_STREAM_BYTES = 1024 * 1024
"""What is fetched of each stream before anything can be merged, and worth reading to its end."""
_PAGES_A_CALLER, _PAGES = 4, 32
_DOWNLOADS_A_CALLER, _DOWNLOADS = 4, 128


@dataclass(frozen=True, slots=True)
class PageBudget:
    """How much work one page is. It ends after the group that reaches one of these."""

    answer_bytes: int = 4 * 1024 * 1024
    scanned_bytes: int = 64 * 1024 * 1024
    """Of text, whether it is in the page or was left out."""
    seconds: float = 5.0


class PageMeter:
    """Whether a page is full, or has been work enough."""

    def __init__(self, budget: PageBudget, limit: int, streams: int, clock: Clock) -> None:
        """`limit` is how many lines are wanted."""
        self._budget = budget
        self._limit = limit
        self._clock = clock
        self._lines = self._bytes = 0
        # To open many streams for every page would be more work than to read on.
        self._most_scanned = max(budget.scanned_bytes, _PER_STREAM_BYTES * (streams - 1))
        self._begun: float | None = None

    def is_full_with(self, group: list[LogRecord], scanned_bytes: int) -> bool:
        """Count a group in. The time begins with the first one, so each page gets on."""
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
    """What reading logs may take of a replica."""

    budget: PageBudget = field(default_factory=PageBudget)
    turns: Turns = field(default_factory=Turns)
    pages: Admission = field(default_factory=_pages)
    downloads: Admission = field(default_factory=_downloads)
    search: Search | None = None
    """None: searches run in the threads of `turns`."""

    @classmethod
    def reporting(cls, refused: Callable[[str], None], search: Search) -> WorkBounds:
        """The usual ones; `refused` is given the kind of every refusal."""
        return cls(pages=_pages(refused), downloads=_downloads(refused), search=search)
