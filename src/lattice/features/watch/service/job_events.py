"""State changes of the watched job in Slurm, and its progress: each once, in order. No I/O.

While Slurm does not answer nothing is reported, in particular no end. Changes are reported when it
answers again.
"""

from __future__ import annotations

from datetime import datetime

from lattice.domain.alert import Progress
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.features.watch.model import (
    WatchEnd,
    WatchProgress,
    WatchRecord,
    WatchState,
    moment,
    moment_or_none,
)

QUIET_S = 300.0
"""A job without a sign for this long is reported as not progressing."""


class JobStory:
    """The history for one reader. `running` is the current attempt, if any."""

    def __init__(self, attempt: int = 0, state: str = "") -> None:
        """`attempt` and `state` were sent before, on another connection."""
        self.sent_attempt = attempt
        self.sent_state = state
        self.running: JobAttempt | None = None
        self.ended = False

    def update(self, allocation: Allocation, now: datetime) -> list[WatchRecord]:
        """Return the changes."""
        attempt = attempts_of(allocation)[-1]
        number = max(allocation.attempt, attempt.number)
        self.running = _running(allocation, attempt)
        if allocation.state.finished:
            self.ended = True
            return [
                WatchEnd(
                    allocation=allocation.id,
                    state=allocation.state,
                    attempt=number,
                    exit_code=allocation.exit_code,
                    ended=allocation.ended,
                    time=now,
                )
            ]
        if (number, allocation.state.value) == (self.sent_attempt, self.sent_state):
            return []
        self.sent_attempt, self.sent_state = number, allocation.state.value
        return [
            WatchState(
                allocation=allocation.id,
                state=allocation.state,
                attempt=number,
                nodes=allocation.nodes,
                node_count=allocation.node_count,
                time=now,
                words=allocation.reason.words
                if allocation.reason and allocation.state.waiting
                else "",
            )
        ]


def _running(allocation: Allocation, attempt: Attempt) -> JobAttempt | None:
    if allocation.state.waiting or attempt.started is None or attempt.ended is not None:
        return None
    return JobAttempt(allocation, attempt)


class GettingOn:
    """The progress of a job for one reader: the newest sign of any node."""

    def __init__(self) -> None:
        self._signs = Progress()
        self._moving: bool | None = None

    def take(self, progress: Progress | None) -> None:
        if progress is None:
            return
        mine = self._signs
        self._signs = Progress(
            output=_later(mine.output, progress.output),
            processor=_later(mine.processor, progress.processor),
            storage=_later(mine.storage, progress.storage),
            network=_later(mine.network, progress.network),
        )

    def check(self, now: float, began: float | None) -> WatchProgress | None:
        """Return a change, if any. `began` is when the server began to follow the nodes."""
        last = self._signs.last
        if last is None and (began is None or now - began < QUIET_S):
            return None
        moving = last is not None and now - last < QUIET_S
        if moving is self._moving:
            return None
        self._moving = moving
        signs = self._signs
        return WatchProgress(
            time=moment(now),
            moving=moving,
            output=moment_or_none(signs.output),
            processor=moment_or_none(signs.processor),
            storage=moment_or_none(signs.storage),
            network=moment_or_none(signs.network),
            last=moment_or_none(last),
        )


def _later(mine: float | None, its: float | None) -> float | None:
    return max(filter(None, (mine, its)), default=None)
