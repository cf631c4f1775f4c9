"""Spans and log records that a job has written of itself, and whether they are this job's. Pure.

They name their job by the attributes of `lattice-run`. Job ids are reused and several clusters may
write to one folder, so cluster, attempt and time must fit as well. Nobody checks what a file says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from lattice.domain.allocation import Allocation
from lattice.domain.attempts import attempts_of

LONGEST_SPAN_NAME = 200
LONGEST_MARK_TEXT = 200
_SLACK_S = 60.0
"""Clocks of nodes differ, and spans are written by the node's."""


@dataclass(frozen=True, slots=True)
class NamedJob:
    """The job that a span names. Empty and 0: not named."""

    job_id: str
    cluster: str = ""
    attempt: int = 0
    rank: int = -1
    """Of the task; -1 if it is not named."""


class WrittenMark(NamedTuple):
    """An event of a span, or a log record."""

    name: str
    time_s: float
    text: str
    is_log: bool
    """False for an event, which has a name of its own."""


class WrittenSpan(NamedTuple):
    """A span with its events. Times are seconds since 1970."""

    name: str
    begin_s: float
    end_s: float
    id: str
    parent: str
    marks: tuple[WrittenMark, ...] = ()


class Ownership(Enum):
    """Whether a span is of an allocation."""

    OWN = 1
    UNNAMED = 2
    """It names no job."""
    OTHER = 3


class SpanScope:
    """What is of one allocation. Made once, asked for each of many records."""

    def __init__(self, allocation: Allocation, now: datetime) -> None:
        first = allocation.first_submitted or allocation.submitted
        self._first_s = first.timestamp() - _SLACK_S
        self._last_s = (allocation.ended or now).timestamp() + _SLACK_S
        self._job_id, self._cluster = str(allocation.job_id), allocation.cluster
        self._newest = max(each.number for each in attempts_of(allocation))

    def ownership(self, named: NamedJob | None) -> Ownership:
        """Return whether what a span names is this allocation; its time is another question."""
        if named is None:
            return Ownership.UNNAMED
        fits = (
            named.job_id == self._job_id
            and named.cluster in {"", self._cluster}
            and named.attempt <= self._newest
        )
        return Ownership.OWN if fits else Ownership.OTHER

    def has_time(self, begin_s: float, end_s: float) -> bool:
        """Return True if that time is between the first submit and the end, or now."""
        return self._first_s <= begin_s <= end_s <= self._last_s
