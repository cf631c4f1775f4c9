"""Finds runs for callers who may read the measurements of their allocations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from lattice.access.actor import Actor
from lattice.access.allocation_finder import Found
from lattice.access.limits import CallerLimits, Questions
from lattice.access.output import OutputAccess
from lattice.base.errors import NotFound, PermissionRefused
from lattice.domain.checkpoint_lineage import LineageWalk, RunLineage
from lattice.domain.sharing import ReadKind
from lattice.domain.training_run import StoredTraining, TrainingRun
from lattice.features.runs.model import RunList
from lattice.foundation.run_finder import TrainingRunFinder

WITHIN_S = 5.0
MOST_ALLOCATIONS = 10
"""How many are looked up for one name."""
_MOST_EARLIER = 5
LINEAGE_S = 20.0


@dataclass(slots=True)
class _Jobs:
    """Job ids that were looked up for one answer, with what the caller may see of them."""

    uses: dict[int, list[Found]] = field(default_factory=dict)
    left_out: bool = False


class RunService:
    """Answers both questions with the same rules as for measurements."""

    def __init__(self, access: OutputAccess, runs: TrainingRunFinder, limits: CallerLimits) -> None:
        self._access = access
        self._runs = runs
        self._limits = limits

    async def of_allocation(self, actor: Actor, name: str, *, lineage: bool = False) -> RunList:
        """Return the runs of one allocation."""
        found = await self._access.find(actor, name)
        await self._limits.ask(actor.sub, Questions.QUERY_METRICS)
        await self._access.enter(actor, found, ReadKind.MEASURE)
        answer = await self._runs.of(found.allocation, WITHIN_S)
        return RunList(
            runs=answer.runs,
            sources=answer.sources,
            allocation=found.allocation,
            lineage=await self._lineage(actor, answer.runs) if lineage else None,
        )

    async def _lineage(self, actor: Actor, runs: tuple[TrainingRun, ...]) -> RunLineage:
        """Follow checkpoints to runs of other allocations that the caller may see."""
        walk, jobs = LineageWalk(runs), _Jobs()
        try:
            async with asyncio.timeout(LINEAGE_S):
                while (question := walk.next()) is not None:
                    stored, silence = await self._runs.with_checkpoint(question)
                    if silence:
                        walk.stop(f"MLflow does not answer: {silence}.")
                    walk.found(await self._seen(actor, stored, jobs))
        except TimeoutError:
            walk.stop(f"The chain was not followed to its end within {LINEAGE_S:.0f} s.")
        if jobs.left_out:
            walk.stop(f"Runs of more than {MOST_ALLOCATIONS} allocations have these checkpoints.")
        return walk.lineage()

    async def named(self, actor: Actor, name: str) -> RunList:
        """Return runs of this name in allocations that the caller may see.

        The caller's own come first: only some allocations are looked up. What is not shown was not
        there for the caller, for whatever reason.
        """
        await self._limits.ask(actor.sub, Questions.QUERY_METRICS)
        stored, sources = await self._runs.named(name)
        found = await self._seen(actor, stored, _Jobs())
        found.sort(key=lambda each: each.started, reverse=True)
        return RunList(runs=tuple(found), sources=sources)

    async def _seen(
        self, actor: Actor, stored: Iterable[StoredTraining], jobs: _Jobs
    ) -> list[TrainingRun]:
        """Those in allocations that the caller may see."""
        by_job: dict[int, list[StoredTraining]] = {}
        for each in sorted(stored, key=lambda one: one.user != actor.user):
            if each.job_id is not None:
                by_job.setdefault(each.job_id, []).append(each)
        found: list[TrainingRun] = []
        for job_id, runs in by_job.items():
            if job_id not in jobs.uses:
                if len(jobs.uses) >= MOST_ALLOCATIONS:
                    jobs.left_out = True
                    continue
                jobs.uses[job_id] = await self._uses(actor, job_id)
            found += await self._of_job(actor, jobs.uses[job_id], runs)
        return found

    async def _uses(self, actor: Actor, job_id: int) -> list[Found]:
        """Every use of a job id that the caller may see."""
        newest = await self._found(actor, str(job_id))
        if newest is None:
            return []
        uses = [newest]
        for earlier in newest.earlier[:_MOST_EARLIER]:
            use = await self._found(actor, earlier)
            uses += [use] if use is not None else []
        return uses

    async def _of_job(
        self, actor: Actor, uses: list[Found], stored: list[StoredTraining]
    ) -> list[TrainingRun]:
        shown = []
        for use in uses:
            runs = [each for each in stored if self._runs.belongs(use.allocation, each)]
            if runs:
                await self._access.enter(actor, use, ReadKind.MEASURE)
                shown += [self._runs.shown(use.allocation, each) for each in runs]
        return shown

    async def _found(self, actor: Actor, name: str) -> Found | None:
        try:
            return await self._access.find(actor, name)
        except (NotFound, PermissionRefused):
            return None
