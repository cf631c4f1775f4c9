"""Whose the jobs of this node are, as far as servers have told it. Pure.

A node sees that a job is there and when it began; which run of it that is, is Slurm's word. So what
was told counts for a job that had begun when Slurm said it, and for no later one: a run after it,
or another job with its number, may not have been told of yet.
"""

from __future__ import annotations

from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.features.telemetry.convert.stamps import Stamps
from lattice.features.telemetry.convert.told import ToldJobs

MOST_KEPT = 1024
"""Jobs, those that were told of last: what was measured at the end of one is sent after it."""


class KnownStamps:
    """As told, also of runs that are over."""

    def __init__(self) -> None:
        self.told = False
        """Whether this site's servers tell at all, as last heard."""
        self._jobs: dict[int, dict[float, tuple[Stamps, float]]] = {}
        """Runs by their start; and when Slurm last said so."""

    def note(self, told: ToldJobs) -> None:
        self.told = told.stamping
        if not told.stamping:
            self._jobs.clear()
        for job_id, run in told.runs.items():
            runs = self._jobs.pop(job_id, {})
            # Of two servers one may be behind; what the other has said stays said.
            before = runs[run.started][1] if run.started in runs else 0.0
            runs[run.started] = (run.stamps, max(told.as_of, before))
            self._jobs[job_id] = runs
        while len(self._jobs) > MOST_KEPT:
            del self._jobs[next(iter(self._jobs))]

    def of(self, job_id: int, began: float) -> Stamps | None:
        """Of a job that began here then, by the servers' clock; None: not known (yet)."""
        runs = self._jobs.get(job_id, {})
        possible = [
            started
            for started, (_, as_of) in runs.items()
            if started - CLOCK_SLACK_S <= began <= as_of
        ]
        return runs[max(possible)][0] if possible else None
