"""Reports on one attempt to callers who may read its output."""

from __future__ import annotations

import logging
from dataclasses import replace

from lattice.access.actor import Actor
from lattice.access.allocation_finder import Found
from lattice.access.limits import CallerLimits, Questions
from lattice.access.output import OutputAccess
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.allocation import Attempt
from lattice.domain.attempts import JobAttempt, attempts_of, chosen_attempt, named
from lattice.domain.objects import BadKeyPart
from lattice.domain.runsummary import RunSummary
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadKind
from lattice.features.report.model import Report
from lattice.features.report.service.advice import advise
from lattice.features.report.service.run_meter import RunMeter
from lattice.features.report.service.summaries import StoredSummaries
from lattice.foundation.run_finder import TrainingRunFinder

_log = logging.getLogger(__name__)
_RUNS_WITHIN_S = 2.0
"""A report does not wait longer for the run store, and is whole without it."""


class ReportService:
    """Builds reports. `summaries` is None if the site has no object store."""

    def __init__(
        self,
        scheduler: Scheduler,
        access: OutputAccess,
        meter: RunMeter,
        summaries: StoredSummaries | None,
        clock: Clock,
        limits: CallerLimits | None = None,
        runs: TrainingRunFinder | None = None,
    ) -> None:
        self._runs = runs or TrainingRunFinder(clock)
        self._scheduler = scheduler
        self._access = access
        self._meter = meter
        self._summaries = summaries
        self._clock = clock
        self._limits = limits

    async def report(self, actor: Actor, name: str, number: int = 0) -> Report:
        """Report on attempt `number`, or with 0 on the newest that has started.

        Raises `DataUnavailable` if it has not started.
        """
        found, attempt = await self._found(actor, name, number)
        if attempt.started is None:
            raise DataUnavailable(
                f"Allocation {found.allocation.id} has not started, so it has used nothing.",
                hint=f"`lattice status {found.allocation.id}` says what it waits for.",
            )
        if self._limits is not None:
            await self._limits.ask(actor.sub, Questions.QUERY_METRICS)
        await self._access.enter(actor, found, ReadKind.MEASURE)
        accounts = self._scheduler.live().cluster.accounts
        job = named(found.allocation, attempt, accounts, self._clock.now())
        stored = await self._stored_summary(job) if attempt.ended is not None else None
        summary = stored or await self._meter.summary(job)
        trained = await self._runs.of(found.allocation, _RUNS_WITHIN_S)
        advice, withheld = advise(summary)
        return Report(
            id=found.allocation.id,
            attempts=len(attempts_of(found.allocation)),
            finished=attempt.ended is not None,
            summary=summary.without_series(),
            advice=advice,
            withheld=withheld,
            kept=stored.written if stored is not None else None,
            runs=tuple(each for each in trained.runs if attempt.number in each.attempts),
        )

    async def _found(self, actor: Actor, name: str, number: int) -> tuple[Found, Attempt]:
        found = await self._access.find(actor, name)
        attempt = chosen_attempt(found.allocation, number)
        if attempt.started is None:
            # It may have started since the last snapshot of Slurm.
            await self._scheduler.fresh(users={found.allocation.user})
            found = await self._access.find(actor, name)
            attempt = chosen_attempt(found.allocation, number)
        return found, attempt

    async def _stored_summary(self, job: JobAttempt) -> RunSummary | None:
        if self._summaries is None:
            return None
        try:
            stored = await self._summaries.of(job)
        except Unavailable as error:
            _log.info("report of %s: %s", job.allocation.ref, error.message)
            return None
        except BadKeyPart:
            return None
        if stored is None or stored.origin.age_s is None:
            return stored
        passed_s = max(0.0, (self._clock.now() - stored.written).total_seconds())
        return replace(stored, origin=replace(stored.origin, age_s=stored.origin.age_s + passed_s))
