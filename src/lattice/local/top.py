"""What a running job uses now, measured by a step inside it: the answer of `lattice top`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable
from lattice.base.text import inert
from lattice.domain.allocation import Allocation, Attempt, State
from lattice.domain.attempts import attempts_of, chosen_attempt
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Provenance
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.nodeset import NodeSet
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.features.allocations.model import AllocationCard
from lattice.features.top.model import TopAnswer, columns_of
from lattice.features.top.operations import TopRequest
from lattice.features.top.service.figures import figures_of
from lattice.features.top.service.rows import Known, rows_of
from lattice.local.probe_script import ProbeSample, readings_of
from lattice.local.probe_step import ProbeStep, step_command

VIA = "a step in the job (srun --overlap)"
_START_S = 20.0
"""How long Slurm may take to start the step."""
_ANSWER_S = 6.0
_BETWEEN_S = 1.0
"""Between the first two samples: a rate needs two."""
_NOT_NOW = "The values are those of now, not of the time that was asked for."
_SUSPENDED = "the job is suspended, and so would be what measures it"

CardOf = Callable[[str], Awaitable[AllocationCard]]
StepMaker = Callable[[Sequence[str], Sequence[str], Clock], ProbeStep]


@dataclass(slots=True)
class _Round:
    """The samples of one question, and when they came."""

    samples: dict[str, ProbeSample]
    time: float


class LocalTop:
    """Keeps one step for the job that was asked for last."""

    def __init__(
        self,
        card: CardOf,
        clock: Clock,
        *,
        step: StepMaker = ProbeStep,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._card = card
        self._clock = clock
        self._make = step
        self._sleep = sleep
        self._step: ProbeStep | None = None
        self._of = ""
        self._before: _Round | None = None

    async def read(self, request: TopRequest) -> TopAnswer:
        """Raises `NotFound`, `Unavailable`, and `DataUnavailable` for a job that does not run."""
        card = await self._card(request.id)
        allocation = card.allocation
        attempt = _running(allocation, request.attempt)
        nodes = tuple(NodeSet.parse(attempt.nodes))
        reason = ""
        if allocation.state in {State.SUSPENDED, State.STOPPED}:
            reason = _SUSPENDED
            before = now = _Round({}, self._clock.now().timestamp())
        else:
            before, now = await self._rounds(allocation, nodes)
        snapshots = [
            _snapshot(allocation, node, before, now) for node in nodes if node in now.samples
        ]
        figures, missing = figures_of(request.mode, snapshots)
        reason = reason or self._why()
        known = Known(
            figures=figures,
            nodes=nodes,
            now=self._clock.now().timestamp(),
            silent={node: reason for node in nodes if node not in now.samples},
            missing=missing,
            has_gpus=None if allocation.gpus is None else allocation.gpus > 0,
        )
        rows = rows_of(request.mode, known)
        measured = any(cell.value is not None for cell in rows[0].cells)
        return TopAnswer(
            allocation=allocation.ref,
            id=allocation.id,
            name=allocation.name,
            attempt=attempt.number,
            attempts=max(len(attempts_of(allocation)), allocation.attempt),
            state=attempt.state,
            nodes=attempt.nodes,
            node_count=attempt.node_count or len(nodes),
            started=attempt.started,
            taken=self._clock.now(),
            mode=request.mode,
            origin=MetricOrigin(
                source=Provenance.IN_JOB_PROBE if measured else Provenance.UNAVAILABLE,
                age_s=rows[0].age_s,
                resolution_s=round(now.time - before.time, 1) or None,
                coverage=Coverage(len(snapshots), len(nodes)),
                reason="" if measured else rows[0].reason,
                via=VIA,
            ),
            columns=columns_of(request.mode),
            rows=rows,
            notes=(_NOT_NOW,) if request.duration_s is not None else (),
            sources=card.sources,
        )

    async def _rounds(self, allocation: Allocation, nodes: Sequence[str]) -> tuple[_Round, _Round]:
        """Two rounds of samples, the last of before and a new one."""
        before = self._before
        name = f"{allocation.ref} {allocation.attempt}"
        if self._step is None or name != self._of or not self._step.is_running:
            self.close()
            self._step, self._of = (
                self._make(step_command(allocation, nodes), nodes, self._clock),
                name,
            )
            before = await self._ask(self._step, _START_S)
            if before.samples:
                await self._sleep(_BETWEEN_S)
        if before is None or not before.samples:
            return (before or _Round({}, self._clock.now().timestamp()),) * 2
        self._before = await self._ask(self._step, _ANSWER_S)
        return before, self._before

    async def _ask(self, step: ProbeStep, within_s: float) -> _Round:
        samples = await asyncio.to_thread(step.ask, within_s)
        return _Round(samples, self._clock.now().timestamp())

    def _why(self) -> str:
        error = self._step.error if self._step is not None else ""
        if error:
            return f"the step that measures could not run: {inert(error)}"
        return "the step that measures gave no answer in time"

    def close(self) -> None:
        """End the step."""
        if self._step is not None:
            self._step.close()
        self._step, self._before = None, None


def _running(allocation: Allocation, number: int) -> Attempt:
    """The attempt that runs. Raises `DataUnavailable` if there is none."""
    attempt = chosen_attempt(allocation, 0)
    name = allocation.id
    if attempt.started is None:
        raise DataUnavailable(
            f"Allocation {name} has not started, so there is nothing to measure.",
            hint=f"`lattice status {name}` says what it waits for.",
        )
    if attempt.ended is not None or number not in {0, attempt.number}:
        raise DataUnavailable(
            f"What allocation {name} used before it ended needs a server: nobody measured it here.",
            hint=f"Slurm's own account of it: sacct -j {allocation.job_id} "
            "-o JobID,Elapsed,TotalCPU,MaxRSS",
        )
    return attempt


def _snapshot(allocation: Allocation, node: str, before: _Round, now: _Round) -> NodeSnapshot:
    identity = JobIdentity("", allocation.job_id, 0, 0.0)
    earlier, sample = before.samples.get(node), now.samples[node]
    passed_s = sample.up_s - earlier.up_s if earlier is not None else 0.0

    def snapshot(of: ProbeSample, previous: ProbeSample | None, time: float) -> JobSnapshot:
        readings = readings_of(previous, of, time, gpus=allocation.gpus)
        return JobSnapshot(identity, time, passed_s, readings)

    return NodeSnapshot(
        node=node,
        # By the node's own clock: what lies between is measured, not when it arrived.
        before=snapshot(earlier, None, now.time - passed_s) if earlier is not None else None,
        now=snapshot(sample, earlier, now.time),
    )
