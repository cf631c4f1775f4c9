"""Compares runs that a caller may see with the first of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from string import ascii_uppercase

from lattice.access.actor import Actor
from lattice.access.limits import CallerLimits, Questions
from lattice.base.clock import Clock
from lattice.domain.measured import Shown
from lattice.features.compare.model import (
    USUAL,
    ComparedRun,
    CompareQuery,
    Comparison,
    MetricComparison,
)
from lattice.features.compare.service.finding import Entered, RunFinder
from lattice.features.compare.service.judging import KnownRun, compared
from lattice.features.compare.service.series import RunSeries, SeriesSource
from lattice.features.compare.service.settings import settings_of


class CompareService:
    """Compares runs for one caller at a time."""

    def __init__(
        self,
        finder: RunFinder,
        series: SeriesSource,
        clock: Clock,
        limits: CallerLimits | None = None,
    ) -> None:
        self._finder = finder
        self._series = series
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
        told, partings = await asyncio.to_thread(compared, labelled, metrics)
        runs = tuple(map(self._run, ascii_uppercase, entered, known))
        return Comparison(
            taken=self._clock.now(),
            align=query.align,
            runs=runs,
            metrics=told,
            partings=partings,
            settings=settings_of([each.job for each in entered]),
            notes=_notes(runs, told, [each for each in wanted if each not in metrics]),
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
            kept=series.kept,
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
