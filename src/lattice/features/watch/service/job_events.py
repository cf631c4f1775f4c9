"""State changes of the watched job in Slurm: each once, in order. No I/O.

While Slurm does not answer nothing is reported, in particular no end. Changes are reported when it
answers again.
"""

from __future__ import annotations

from datetime import datetime

from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.features.watch.model import WatchEnd, WatchRecord, WatchState


class JobStory:
    """The history for one reader. `running` is the current attempt, if any."""

    def __init__(self, attempt: int = 0, state: str = "") -> None:
        """`attempt` and `state` were sent before, on another connection."""
        self.told_attempt = attempt
        self.told_state = state
        self.running: JobAttempt | None = None
        self.ended = False

    def look(self, allocation: Allocation, now: datetime) -> list[WatchRecord]:
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
        if (number, allocation.state.value) == (self.told_attempt, self.told_state):
            return []
        self.told_attempt, self.told_state = number, allocation.state.value
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
