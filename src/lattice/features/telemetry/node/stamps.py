"""The owners' labels of this node's jobs, as received from servers. Pure.

A node sees a job and its start; which run that is, only Slurm can tell. So labels are valid for a
job that had begun when Slurm's data was read. A later run, or another job with the same number, may
not be in that data yet.
"""

from __future__ import annotations

from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.features.telemetry.convert.stamps import Stamps
from lattice.features.telemetry.convert.told import ToldJobs

MOST_KEPT = 1024
"""Jobs, the most recent ones: their last samples are sent after their end."""


class KnownStamps:
    """The received labels, including those of ended runs."""

    def __init__(self) -> None:
        self.told = False
        """True if the site's servers send labels, as last received."""
        self._jobs: dict[int, dict[float, tuple[Stamps, float]]] = {}
        """Runs by their start, with the newest time of Slurm's data."""

    def note(self, told: ToldJobs) -> None:
        self.told = told.stamping
        if not told.stamping:
            self._jobs.clear()
        for job_id, run in told.runs.items():
            runs = self._jobs.pop(job_id, {})
            # One of two servers may be behind; the newer data stays.
            before = runs[run.started][1] if run.started in runs else 0.0
            runs[run.started] = (run.stamps, max(told.as_of, before))
            self._jobs[job_id] = runs
        while len(self._jobs) > MOST_KEPT:
            del self._jobs[next(iter(self._jobs))]

    def of(self, job_id: int, began: float) -> Stamps | None:
        """Return the labels of a job that began here at this server time, or None if unknown."""
        runs = self._jobs.get(job_id, {})
        possible = [
            started
            for started, (_, as_of) in runs.items()
            if started - CLOCK_SLACK_S <= began <= as_of
        ]
        return runs[max(possible)][0] if possible else None
