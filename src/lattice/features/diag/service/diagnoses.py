"""One diagnosis, or the merged stacks of a job, for one caller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder, Found
from lattice.access.limits import CallerLimits, Questions
from lattice.access.output import OutputAccess
from lattice.access.permission import Permission
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt, attempts_of, named
from lattice.domain.jobfacts import RankStack
from lattice.domain.node_snapshot import NodeUnreachable, StackSource
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadKind
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Area, Case, Diagnosis, DiagRule, StackPicture
from lattice.features.diag.rules.engine import run_rules, summary_of, verdict_of
from lattice.features.diag.service.case_builder import NOT_IN_TIME, CaseBuilder
from lattice.features.diag.service.merged_stacks import merged, picture
from lattice.observe.node_questions import nodes_of

STACKS_WITHIN_S = 15.0
_GRACE_S = 2.0
_FEWEST_FOR_A_THREAD = 16
_NO_GPUS = "The job has no GPUs."


class DiagService:
    """Serves callers. `stacks` is None if nodes can't be asked for them."""

    def __init__(
        self,
        scheduler: Scheduler,
        finder: AllocationFinder,
        output: OutputAccess,
        gathering: CaseBuilder,
        rules: Sequence[DiagRule],
        stacks: StackSource | None,
        clock: Clock,
        limits: CallerLimits | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._finder = finder
        self._output = output
        self._gathering = gathering
        self.rules = tuple(rules)
        self._stacks = stacks
        self._clock = clock
        self._limits = limits

    async def diagnose(self, actor: Actor, name: str, areas: tuple[Area, ...]) -> Diagnosis:
        """Diagnose a running job, in these areas or in all.

        Raises what the finder raises, `RateLimited` and `DataUnavailable`.
        """
        begun_s = self._clock.monotonic()
        await self._pace(actor)
        found, job = await self._found(actor, name)
        await self._output.enter(actor, found, ReadKind.MEASURE)
        topology = self._scheduler.live().cluster.topology
        case = await self._gathering.case(job, topology)
        if len(case.nodes) < _FEWEST_FOR_A_THREAD:
            findings = run_rules(self.rules, case, areas)
        else:
            # Hundreds of nodes take a while to judge, so that runs in a thread.
            findings = await asyncio.to_thread(run_rules, self.rules, case, areas)
        verdict = verdict_of(findings)
        allocation, attempt = job.allocation, job.attempt
        return Diagnosis(
            allocation=allocation.ref,
            id=allocation.id,
            name=allocation.name,
            attempt=attempt.number,
            state=attempt.state,
            nodes=attempt.nodes,
            node_count=attempt.node_count or len(case.nodes),
            started=attempt.started,
            taken=self._clock.now(),
            areas=areas,
            verdict=verdict,
            words=summary_of(verdict, findings),
            findings=findings,
            covered=_covered(case),
            took_s=self._clock.monotonic() - begun_s,
            notes=(_NO_GPUS,) if Area.GPU in areas and case.has_gpus is False else (),
            sources=found.sources,
        )

    async def stacks(self, actor: Actor, name: str) -> StackPicture:
        """Get the stacks of every rank, for the owner only. Raises what the finder raises."""
        begun_s = self._clock.monotonic()
        await self._pace(actor)
        found = await self._finder.find(actor, Permission.ATTACH_ALLOCATION, name)
        job = self._running(found.allocation)
        if self._stacks is None:
            raise Unavailable(
                "This server can't ask nodes for stacks.",
                hint="`lattice attach` and py-spy do the same by hand.",
            )
        await self._output.audit(actor, job.allocation, "stacks")
        stacks, silences = await self._taken(self._stacks, actor, job)
        groups = merged(stacks)
        nodes = nodes_of(job)
        return StackPicture(
            allocation=job.allocation.ref,
            id=job.allocation.id,
            attempt=job.attempt.number,
            taken=self._clock.now(),
            words=picture(groups),
            groups=groups,
            troubles=_troubles(stacks, silences),
            covered=Coverage(len({each.node for each in stacks}), len(nodes)),
            took_s=self._clock.monotonic() - begun_s,
        )

    async def _taken(
        self, stacks: StackSource, actor: Actor, job: JobAttempt
    ) -> tuple[tuple[RankStack, ...], tuple[NodeUnreachable, ...]]:
        try:
            async with asyncio.timeout(STACKS_WITHIN_S + _GRACE_S):
                return await stacks.stacks(actor.sub, job, within_s=STACKS_WITHIN_S)
        except TimeoutError:
            return (), tuple(NodeUnreachable(node, NOT_IN_TIME) for node in nodes_of(job))

    async def _pace(self, actor: Actor) -> None:
        if self._limits is not None:
            await self._limits.ask(actor.sub, Questions.DIAGNOSTICS)

    async def _found(self, actor: Actor, name: str) -> tuple[Found, JobAttempt]:
        found = self._output.find_live(actor, name)
        if found is None or found.allocation.started is None:
            found = await self._output.find(actor, name)
            if found.allocation.started is None and not found.allocation.state.finished:
                # It may have started since the last snapshot of Slurm.
                await self._scheduler.fresh(users={found.allocation.user})
                found = await self._output.find(actor, name)
        return found, self._running(found.allocation)

    def _running(self, allocation: Allocation) -> JobAttempt:
        """Return its newest attempt. Raises `DataUnavailable` if that does not run."""
        attempt = attempts_of(allocation)[-1]
        if attempt.started is None:
            raise DataUnavailable(
                f"Allocation {allocation.id} has not started, so there is nothing to look at.",
                hint=f"`lattice status {allocation.id}` says what it waits for.",
            )
        if attempt.ended is not None:
            raise DataUnavailable(
                f"Allocation {allocation.id} has ended; only a job that runs can be looked at.",
                hint=f"`lattice report {allocation.id}` says what it used and what to change.",
            )
        accounts = self._scheduler.live().cluster.accounts
        return named(allocation, attempt, accounts, self._clock.now())


def _covered(case: Case) -> Coverage:
    complete = {node for node in case.nodes if node in case.sights and node in case.facts}
    return Coverage(len(complete), len(case.nodes))


def _troubles(stacks: Sequence[RankStack], silences: Sequence[NodeUnreachable]) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for each in stacks:
        if each.trouble:
            who = f"rank {each.rank}" if each.rank is not None else f"pid {each.pid} on {each.node}"
            reasons.setdefault(each.trouble, []).append(who)
    for silence in silences:
        reasons.setdefault(silence.reason, []).append(silence.node)
    return tuple(f"{', '.join(dict.fromkeys(who))}: {why}" for why, who in reasons.items())
