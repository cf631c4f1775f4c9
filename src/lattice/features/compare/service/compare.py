"""Compares runs that a caller may see with the first of them.

Each name takes the same path as any other read, one after the other. So another's run gives the
same answer at the same cost as a missing one. Nothing is recorded and no store is queried before
all are found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from lattice.access.actor import Actor
from lattice.access.allocation_finder import Found
from lattice.access.limits import CallerLimits, Questions
from lattice.access.output import OutputAccess
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, PermissionRefused, UsageError
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import JobAttempt, attempts_of, named
from lattice.domain.measured import Shown
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadKind
from lattice.features.compare.model import (
    FEWEST_RUNS,
    MOST_RUNS,
    USUAL,
    ComparedRun,
    CompareQuery,
    Comparison,
    MetricComparison,
)
from lattice.features.compare.service.metric_comparison import KnownRun, compared
from lattice.features.compare.service.series import RunSeries, SeriesSource
from lattice.features.compare.service.settings import settings_of
from lattice.features.compare.service.trainings import TrainedJob, TrainingSource

IsSensitive = Callable[[Allocation], bool]


@dataclass(frozen=True, slots=True)
class Entered:
    """A run that the caller may read."""

    job: JobAttempt
    attempts: int


class CompareService:
    def __init__(
        self,
        finder: RunFinder,
        series: SeriesSource,
        trainings: TrainingSource,
        clock: Clock,
        limits: CallerLimits | None = None,
    ) -> None:
        self._finder = finder
        self._series = series
        self._trainings = trainings
        self._clock = clock
        self._limits = limits

    async def compare(self, actor: Actor, query: CompareQuery) -> Comparison:
        """Compare runs.

        Raises `RateLimited`, `UsageError`, `PermissionRefused`, and what the finder raises.
        """
        if self._limits is not None:
            await self._limits.ask(actor.sub, Questions.COMPARE)
        entered = await self._finder.enter(actor, query.ids)
        wanted = query.metrics or USUAL
        known = await asyncio.gather(*(self._series.of(each.job, wanted) for each in entered))
        labelled = [
            KnownRun(label, each.tracks, each.origin.reason, each.refused)
            for label, each in zip(ascii_uppercase, known, strict=False)
        ]
        metrics = query.metrics or _measured(known)
        # Many long runs take a second of computing, so it runs in a thread.
        comparisons, partings = await asyncio.to_thread(compared, labelled, metrics)
        runs = tuple(map(self._run, ascii_uppercase, entered, known))
        trainings = await self._trainings.compared(
            [
                TrainedJob(run.label, each.job, series.tracks, series.origin.reason)
                for run, each, series in zip(runs, entered, known, strict=True)
            ]
        )
        return Comparison(
            taken=self._clock.now(),
            align=query.align,
            runs=runs,
            metrics=comparisons,
            partings=partings,
            settings=settings_of([each.job for each in entered]),
            notes=_notes(runs, comparisons, [each for each in wanted if each not in metrics]),
            trainings=trainings,
        )

    def _run(self, label: str, entered: Entered, series: RunSeries) -> ComparedRun:
        allocation, attempt = entered.job.allocation, entered.job.attempt
        assert attempt.started is not None
        until = attempt.ended or self._clock.now()
        return ComparedRun(
            label=label,
            allocation=allocation.ref,
            id=allocation.id,
            name=allocation.name,
            user=allocation.user,
            attempt=attempt.number,
            attempts=entered.attempts,
            state=attempt.state,
            nodes=attempt.nodes,
            node_count=attempt.node_count,
            started=attempt.started,
            ended=attempt.ended,
            length_s=max(0.0, (until - attempt.started).total_seconds()),
            origin=series.origin,
            kept=series.written,
            job_id=allocation.job_id,
            cluster=allocation.cluster,
            submitted=allocation.first_submitted or allocation.submitted,
        )


def _measured(known: Sequence[RunSeries]) -> tuple[Shown, ...]:
    """Return the default metrics that any run has; a note names the others."""
    return tuple(each for each in USUAL if any(each in run.tracks for run in known))


def _notes(
    runs: Sequence[ComparedRun],
    metrics: Sequence[MetricComparison],
    unmeasured: Sequence[Shown],
) -> tuple[str, ...]:
    notes = [_of_run(each) for each in runs]
    if unmeasured:
        names = ", ".join(each.value for each in unmeasured)
        notes.append(f"Not measured in any of them: {names}.")
    steps = {each.origin.resolution_s for each in runs if each.origin.resolution_s}
    if len(steps) > 1:
        notes.append(
            "They were measured at different resolutions: means are of each run's own, and the "
            f"moment of parting is told to {max(steps):.0f} s."
        )
    if metrics and len({each.node_count for each in runs}) > 1:
        counts = ", ".join(f"{each.label} {each.node_count}" for each in runs)
        notes.append(
            f"They had different numbers of nodes ({counts}): what is used, sent, read and "
            "written is of all nodes of a run together."
        )
    if metrics and len(runs) > 2:
        notes.append("How sure a difference is takes all runs and metrics of this page together.")
    return tuple(each for each in notes if each)


def _of_run(run: ComparedRun) -> str:
    origin = run.origin
    if origin.reason:
        error = f" ({origin.last_error})" if origin.last_error else ""
        return f"{run.label} has no numbers: {origin.reason}{error}."
    parts = []
    if run.kept is not None:
        parts.append(
            f"{run.label} is compared by its kept summary, in stretches of "
            f"{origin.resolution_s or 0:.0f} s: the metric store no longer has it."
        )
    if run.ended is None:
        parts.append(f"{run.label} still runs; this is what is known so far.")
    if origin.coverage.measured < origin.coverage.nodes:
        parts.append(
            f"{run.label} was measured on {origin.coverage} only: its totals lack the others."
        )
    return " ".join(parts)


class RunFinder:
    def __init__(
        self,
        scheduler: Scheduler,
        access: OutputAccess,
        clock: Clock,
        is_sensitive: IsSensitive = lambda _: False,
    ) -> None:
        self._scheduler = scheduler
        self._access = access
        self._clock = clock
        self._is_sensitive = is_sensitive

    async def enter(self, actor: Actor, names: Sequence[str]) -> tuple[Entered, ...]:
        """Find all runs. Raises `UsageError`, `PermissionRefused`, and what the finder raises."""
        _check_count(names)
        found = [await self._found(actor, each) for each in names]
        _check_different([each.allocation for each in found])
        kinds = {self._is_sensitive(each.allocation) for each in found}
        if len(kinds) > 1:
            raise PermissionRefused(
                "Sensitive work is not compared with other work.",
                hint="Compare sensitive allocations with each other alone.",
            )
        entered = [self._entered(each) for each in found]
        for each in found:
            await self._access.enter(actor, each, ReadKind.MEASURE)
        return tuple(entered)

    async def _found(self, actor: Actor, name: str) -> Found:
        found = await self._access.find(actor, name)
        if _newest(found.allocation).started is None:
            # It may have started since the last snapshot of Slurm.
            await self._scheduler.fresh(users={found.allocation.user})
            found = await self._access.find(actor, name)
        return found

    def _entered(self, found: Found) -> Entered:
        allocation = found.allocation
        attempt = _newest(allocation)
        if attempt.started is None:
            raise DataUnavailable(
                f"Allocation {allocation.id} has not started, so there is nothing to compare.",
                hint=f"`lattice status {allocation.id}` says what it waits for.",
            )
        accounts = self._scheduler.live().cluster.accounts
        job = named(allocation, attempt, accounts, self._clock.now())
        return Entered(job, max(len(attempts_of(allocation)), allocation.attempt))


def _check_count(names: Sequence[str]) -> None:
    if not FEWEST_RUNS <= len(names) <= MOST_RUNS:
        raise UsageError(
            f"{len(names)} can't be compared: it takes {FEWEST_RUNS} to {MOST_RUNS} allocations.",
            hint="The first is the baseline: `lattice compare 41 42`.",
        )


def _check_different(allocations: Sequence[Allocation]) -> None:
    seen: set[str] = set()
    for each in allocations:
        if each.ref in seen:
            raise UsageError(
                f"Allocation {each.id} is named twice.", hint="Name each of them once."
            )
        seen.add(each.ref)


def _newest(allocation: Allocation) -> Attempt:
    """Return the newest attempt that has started: a requeued job has run before."""
    attempts = attempts_of(allocation)
    return next((each for each in reversed(attempts) if each.started), attempts[-1])
