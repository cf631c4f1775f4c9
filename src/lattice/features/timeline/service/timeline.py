"""Puts a timeline together for callers who may read the measurements of the allocation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from lattice.access.actor import Actor
from lattice.access.allocation_finder import Found
from lattice.access.limits import CallerLimits, Questions
from lattice.access.output import OutputAccess
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, Attempt, State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.log_volume import LogVolumes
from lattice.domain.session_span import SessionSpans
from lattice.domain.sharing import ReadKind, ReadNotes, Standing
from lattice.domain.training_run import TrainingRun
from lattice.features.timeline.lines import chosen_metrics, thinned
from lattice.features.timeline.model import (
    MOST_ATTEMPTS,
    MOST_TRAININGS,
    EventKind,
    PhaseKind,
    Timeline,
    TimelineAttempt,
    TimelineEvent,
    TimelineLine,
    TimelinePhase,
)
from lattice.features.timeline.service.figures import AttemptFigures, NoFigures
from lattice.features.timeline.service.log_volume import loss_events, volume_line
from lattice.features.timeline.service.run_events import AttemptEvents
from lattice.foundation.run_finder import FoundRuns, TrainingRunFinder

_RUNS_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSources:
    """Where the parts come from."""

    clock: Clock
    figures: AttemptFigures
    runs: TrainingRunFinder
    reads: ReadNotes
    events: AttemptEvents
    sessions: SessionSpans | None = None
    volumes: LogVolumes | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """Events or lines, and what is missing of them."""

    events: tuple[TimelineEvent, ...] = ()
    lines: tuple[TimelineLine, ...] = ()
    missing: tuple[str, ...] = ()


class TimelineService:
    """Answers for one caller at a time."""

    def __init__(
        self, access: OutputAccess, sources: TimelineSources, limits: CallerLimits
    ) -> None:
        self._access = access
        self._sources = sources
        self._limits = limits

    async def timeline(self, actor: Actor, name: str) -> Timeline:
        """Return the whole timeline. Raises `NotFound`, `RateLimited` and `Unavailable`."""
        found = await self._access.find(actor, name)
        await self._limits.ask(actor.sub, Questions.QUERY_METRICS)
        await self._access.enter(actor, found, ReadKind.MEASURE)
        allocation, now = found.allocation, self._sources.clock.now()
        attempts = attempts_of(allocation)[-MOST_ATTEMPTS:]
        trained, measured, happened, wrote, owners = await asyncio.gather(
            self._sources.runs.of(allocation, _RUNS_S),
            self._measured(allocation, attempts),
            self._happened(allocation, attempts),
            self._wrote(allocation, attempts),
            self._for_owner(found),
        )
        logged = await self._logged(trained.runs)
        parts = (measured, wrote, happened, owners, logged)
        until = allocation.ended if allocation.state.finished else None
        return Timeline(
            allocation=allocation.ref,
            id=allocation.id,
            job_id=allocation.job_id,
            cluster=allocation.cluster,
            name=allocation.name,
            user=allocation.user,
            state=allocation.state,
            begin=min(each.submitted for each in attempts),
            until=until or now,
            finished=allocation.state.finished,
            attempts=tuple(map(_shown_attempt, attempts)),
            left_out=len(attempts_of(allocation)) - len(attempts),
            phases=phases_of(allocation, attempts),
            runs=trained.runs,
            events=_events(allocation, parts),
            lines=tuple(line for part in parts for line in part.lines),
            missing=(*_silent(trained), *(text for part in parts for text in part.missing)),
            sources=(*found.sources, *trained.sources),
        )

    async def _measured(self, allocation: Allocation, attempts: tuple[Attempt, ...]) -> _Part:
        lines: list[TimelineLine] = []
        missing: list[str] = []
        for each in attempts:
            if each.started is None:
                continue
            try:
                lines += await self._sources.figures.of(JobAttempt(allocation, each))
            except NoFigures as reason:
                missing.append(f"Figures of attempt {each.number}: {reason}.")
        return _Part(lines=tuple(lines), missing=tuple(missing))

    async def _happened(self, allocation: Allocation, attempts: tuple[Attempt, ...]) -> _Part:
        found = await asyncio.gather(
            *(self._sources.events.of(JobAttempt(allocation, each)) for each in attempts)
        )
        return _Part(
            events=tuple(event for each in found for event in each.events),
            missing=tuple(text for each in found for text in each.missing),
        )

    async def _wrote(self, allocation: Allocation, attempts: tuple[Attempt, ...]) -> _Part:
        volumes = self._sources.volumes
        if volumes is None:
            return _Part()
        events: list[TimelineEvent] = []
        lines: list[TimelineLine] = []
        missing: list[str] = []
        for each in attempts:
            if each.started is None:
                continue
            try:
                found = await volumes(JobAttempt(allocation, each))
            except Unavailable as problem:
                missing.append(f"Output of attempt {each.number}: {problem.message}")
                continue
            if found.missing:
                missing.append(f"Output of attempt {each.number}: {found.missing}")
            if found.steps:
                lines.append(volume_line(found, each.number))
            events += loss_events(found)
        return _Part(tuple(events), tuple(lines), tuple(missing))

    async def _for_owner(self, found: Found) -> _Part:
        """Sessions and reads of others, for the owner alone."""
        if found.standing is not Standing.OWNER:
            return _Part()
        allocation = found.allocation
        events: list[TimelineEvent] = []
        try:
            spans = self._sources.sessions
            sessions = await spans(allocation.user, allocation.ref) if spans else ()
            events += [
                TimelineEvent(
                    kind=EventKind.SESSION,
                    time=each.started,
                    ended=each.ended,
                    lasts=each.ended is None,
                    node=each.node,
                    text=each.command,
                )
                for each in sessions
            ]
            events += [
                TimelineEvent(
                    kind=EventKind.READ,
                    time=each.first,
                    ended=each.last,
                    text=f"{each.reader} ({each.standing.value})",
                )
                for each in await self._sources.reads.of((allocation,))
            ]
        except Unavailable as problem:
            return _Part(tuple(events), (), (f"Sessions and reads: {problem.message}",))
        return _Part(tuple(events))

    async def _logged(self, runs: tuple[TrainingRun, ...]) -> _Part:
        asked = [(run, name) for run in runs[:MOST_TRAININGS] for name in chosen_metrics(run)]
        histories = await asyncio.gather(
            *(self._sources.runs.history(run.id, name) for run, name in asked)
        )
        lines = tuple(
            TimelineLine(name=name, run=run.id, points=thinned(points))
            for (run, name), points in zip(asked, histories, strict=True)
            if points
        )
        more = len(runs) - MOST_TRAININGS
        missing = (f"Values of {more} older runs are not shown.",) if more > 0 else ()
        return _Part(lines=lines, missing=missing)


def phases_of(allocation: Allocation, attempts: Iterable[Attempt]) -> tuple[TimelinePhase, ...]:
    """What each attempt did, in order. Slurm keeps submit, start and end, and the state of now."""
    phases: list[TimelinePhase] = []
    before: datetime | None = None
    for each in attempts:
        phases.append(
            TimelinePhase(
                kind=PhaseKind.WAITING,
                attempt=each.number,
                # A requeue may keep the time of the first submit.
                started=max(each.submitted, before or each.submitted),
                ended=each.started or each.ended,
            )
        )
        before = each.ended
        if each.started is not None:
            phases.append(
                TimelinePhase(
                    kind=_kind_now(allocation.state) if each.ended is None else PhaseKind.RUNNING,
                    attempt=each.number,
                    started=each.started,
                    ended=each.ended,
                )
            )
    return tuple(phases)


def _kind_now(state: State) -> PhaseKind:
    if state is State.CONFIGURING:
        return PhaseKind.STARTING
    return PhaseKind.ENDING if state is State.COMPLETING else PhaseKind.RUNNING


def _shown_attempt(attempt: Attempt) -> TimelineAttempt:
    return TimelineAttempt(
        number=attempt.number,
        state=attempt.state,
        submitted=attempt.submitted,
        started=attempt.started,
        ended=attempt.ended,
        nodes=attempt.nodes,
        node_count=attempt.node_count,
    )


def _events(allocation: Allocation, parts: Iterable[_Part]) -> tuple[TimelineEvent, ...]:
    events = [event for part in parts for event in part.events]
    if allocation.preempted_at is not None:
        events.append(TimelineEvent(kind=EventKind.PREEMPTED, time=allocation.preempted_at))
    return tuple(sorted(events, key=lambda each: (each.time, each.kind.value, each.node)))


def _silent(trained: FoundRuns) -> tuple[str, ...]:
    return tuple(
        f"Runs: MLflow does not answer: {each.error}" for each in trained.sources if not each.ok
    )
