"""The resource use of a job for one caller: from the metric store, or else from the agents."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from lattice.access.actor import Actor
from lattice.access.allocation_finder import Found
from lattice.access.limits import CallerLimits, Questions
from lattice.access.output import OutputAccess
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, Unavailable, UsageError
from lattice.base.moment import age, silence
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import JobAttempt, attempts_of, chosen_attempt, named
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metric import Absence, Provenance
from lattice.domain.metricstore import BadQuery, MetricStore, StoreSilent
from lattice.domain.node_snapshot import NodeSnapshots
from lattice.domain.nodeset import NodeSet
from lattice.domain.promql import BadSelector
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadKind
from lattice.domain.slices import AllocationSlice, slice_text
from lattice.domain.telemetry import Coverage, MetricOrigin, ModeOf
from lattice.features.top.model import (
    LONGEST_DURATION_S,
    RowKind,
    TopAnswer,
    TopMode,
    TopQuery,
    TopRow,
    columns_of,
    metrics_of,
)
from lattice.features.top.service.figures import figures_of
from lattice.features.top.service.reasons import Reasons, silence_text
from lattice.features.top.service.rows import JUST_BEGUN, Known, rows_of
from lattice.features.top.service.stored import StoredReading, StoredValues, Stretch
from lattice.observe.metric_query import owner_filter
from lattice.observe.windows import fresh_s

NO_STORE = "agents (no metric store is configured)"
STORE_SILENT = "agents (the metric store does not answer)"
STORE_REFUSES = "agents (the metric store can't answer this)"
SENSITIVE = "agents (sensitive work does not stand in the shared store)"
UNBORN = f"{JUST_BEGUN}; no sample of it is stored yet"
_AGENTS_S = 3.0


@dataclass(slots=True)
class _Reading:
    """The intermediate results of one request."""

    job: JobAttempt
    query: TopQuery
    stretch: Stretch
    interval_s: float
    nodes: tuple[str, ...]
    via: str = "store"
    last_error: str = ""
    notes: list[str] = field(default_factory=list)
    queries: tuple[str, ...] = ()

    @property
    def is_young(self) -> bool:
        return self.stretch.lasted_s < 2 * fresh_s(self.interval_s)

    @property
    def node_count(self) -> int:
        return self.job.attempt.node_count or len(self.nodes)


class TopService:
    """Answers callers. `degraded` returns a note on the servers' own state, or nothing."""

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        scheduler: Scheduler,
        access: OutputAccess,
        store: MetricStore | None,
        looks: NodeSnapshots | None,
        modes: ModeOf,
        clock: Clock,
        limits: CallerLimits | None = None,
        degraded: Callable[[], str] = lambda: "",
        *,
        is_sensitive: Callable[[Allocation], bool] = lambda _: False,
        slices: Callable[[Allocation], tuple[AllocationSlice, ...]] = lambda _: (),
    ) -> None:
        self._slices = slices
        self._scheduler = scheduler
        self._access = access
        self._stored = StoredValues(store) if store is not None else None
        self._looks = looks
        self._modes = modes
        self._clock = clock
        self._limits = limits
        self._degraded = degraded
        self._is_sensitive = is_sensitive
        self._reasons = Reasons(looks, clock)
        self._silent_since_s: float | None = None

    async def read(self, actor: Actor, name: str, query: TopQuery) -> TopAnswer:
        """Return the job's resource use.

        Raises what the finder raises, `RateLimited`, `Unavailable` and `DataUnavailable`.
        """
        if self._limits is not None:
            await self._limits.ask(actor.sub, Questions.QUERY_METRICS)
        found, job = await self._found(actor, name, query)
        await self._access.enter(actor, found, ReadKind.MEASURE)
        now = self._clock.now()
        stretch = _stretch_of(job, query, now)
        interval_s = self._modes(job.allocation.ref).interval_s
        reading = _Reading(job, query, stretch, interval_s, _nodes_of(job.attempt))
        known = await self._known(reading)
        reading.notes += [
            f"{each.node} is measured inside its slice {slice_text(each.guest)}"
            for each in (self._slices(job.allocation) if stretch.running else ())
        ]
        return self._answer(found, reading, known)

    async def _found(self, actor: Actor, name: str, query: TopQuery) -> tuple[Found, JobAttempt]:
        found = self._access.find_live(actor, name)
        if found is None or not _tells(found, query):
            found = await self._access.find(actor, name)
            if chosen_attempt(found.allocation, query.attempt).started is None:
                # It may have started since the last snapshot of Slurm.
                await self._scheduler.fresh(users={found.allocation.user})
                found = await self._access.find(actor, name)
        attempt = chosen_attempt(found.allocation, query.attempt)
        if attempt.started is None:
            raise _not_started(found.allocation)
        accounts = self._scheduler.live().cluster.accounts
        return found, named(found.allocation, attempt, accounts, self._clock.now())

    async def _known(self, reading: _Reading) -> Known:
        if self._stored is None:
            return await self._from_agents(reading, NO_STORE)
        if self._is_sensitive(reading.job.allocation):
            return await self._from_agents(reading, SENSITIVE)
        try:
            owner = owner_filter(reading.job)
        except BadSelector:
            raise Unavailable(
                f"Slurm does not say whose allocation {reading.job.allocation.id} is.",
                hint="Try again in a minute.",
            ) from None
        try:
            stored = await self._stored.read(
                owner, reading.query, reading.stretch, reading.interval_s, reading.nodes
            )
        except StoreSilent as silence:
            self._silent_since_s = self._silent_since_s or self._clock.monotonic()
            reading.last_error = str(silence)
            return await self._from_agents(reading, STORE_SILENT)
        except BadQuery as refusal:
            reading.last_error = str(refusal)
            return await self._from_agents(reading, STORE_REFUSES)
        self._silent_since_s = None
        reading.notes += stored.notes
        reading.queries = stored.queries
        return await self._explained(reading, stored)

    async def _explained(self, reading: _Reading, stored: StoredReading) -> Known:
        """Add the reasons for missing values, as far as nodes report them."""
        unborn = reading.stretch.running and reading.stretch.lasted_s < stored.fresh_s
        silent = dict.fromkeys(
            stored.silent, UNBORN if unborn else f"no sample in the last {stored.fresh_s} s"
        )
        mode, figures = reading.query.mode, stored.figures
        has_gpus = _has_gpus(reading.job)
        wanted = [each for each in metrics_of(mode) if not (SHOWN[each].per_gpu and not has_gpus)]
        lacking = stored.lacking(mode, wanted, reading.nodes)
        if mode is TopMode.SUMMARY:
            lacking = lacking[:1]
        missing: dict[tuple[Shown, str], Absence] = {}
        if reading.stretch.running and (silent or lacking):
            for node, word in (await self._reasons.of(reading.job, (*silent, *lacking))).items():
                if node not in silent:
                    missing |= {(each, node): absence for each, absence in word.absences.items()}
                elif word.silence:
                    silent[node] = f"{word.silence}; {JUST_BEGUN}" if unborn else word.silence
                elif reason := word.only_reason:
                    silent[node] = reason
                elif not unborn:
                    silent[node] += ", though its agent answers"
        return Known(
            figures=figures,
            nodes=reading.nodes,
            now=self._clock.now().timestamp(),
            running=reading.stretch.running,
            young=reading.is_young,
            silent=silent,
            missing=missing,
            over_time=reading.stretch.duration_s is not None,
            has_gpus=has_gpus,
            summary=stored.summary,
        )

    async def _from_agents(self, reading: _Reading, via: str) -> Known:
        if not reading.stretch.running or self._looks is None:
            why = via.partition("(")[2].rstrip(")")
            raise Unavailable(
                f"What allocation {reading.job.allocation.id} used can't be told now: "
                f"{why}{f' ({reading.last_error})' if reading.last_error else ''}.",
                hint=_what_to_do(via),
            )
        reading.via = via
        if self._silent_since_s is not None:
            away_s = self._clock.monotonic() - self._silent_since_s
            reading.notes.append(
                f"The metric store {silence(away_s)}; these are the agents' own values, and there "
                "is no past."
            )
        if reading.stretch.duration_s is not None:
            reading.notes.append("The values are those of now, not of the time that was asked for.")
            reading.stretch = replace(reading.stretch, duration_s=None)
        snapshots, silences = await self._looks.read(reading.job, within_s=_AGENTS_S)
        current_s = fresh_s(reading.interval_s)
        fresh = [each for each in snapshots if reading.stretch.at - each.now.time <= current_s]
        figures, missing = figures_of(reading.query.mode, fresh)
        measured = {each.node for each in fresh}
        silent = {
            node: "its agent has told nothing" for node in reading.nodes if node not in measured
        }
        silent |= {each.node: silence_text(each, self._clock) for each in silences}
        silent |= {
            each.node: f"it has not measured for {age(reading.stretch.at - each.now.time)}"
            for each in snapshots
            if each.node not in measured
        }
        return Known(
            figures=figures,
            nodes=reading.nodes,
            now=self._clock.now().timestamp(),
            young=reading.is_young,
            silent=silent,
            missing=missing,
            has_gpus=_has_gpus(reading.job),
        )

    def _answer(self, found: Found, reading: _Reading, known: Known) -> TopAnswer:
        allocation, attempt = reading.job.allocation, reading.job.attempt
        rows = rows_of(reading.query.mode, known)
        degraded = self._degraded()
        return TopAnswer(
            allocation=allocation.ref,
            id=allocation.id,
            name=allocation.name,
            attempt=attempt.number,
            attempts=max(len(attempts_of(allocation)), allocation.attempt),
            state=attempt.state,
            nodes=attempt.nodes,
            node_count=reading.node_count,
            started=attempt.started,
            ended=attempt.ended,
            taken=self._clock.now(),
            mode=reading.query.mode,
            duration_s=reading.stretch.duration_s,
            origin=_origin(reading, known, rows[0]),
            columns=columns_of(reading.query.mode),
            rows=rows,
            notes=(*([degraded] if degraded else []), *reading.notes),
            queries=reading.queries if reading.query.explain else (),
            sources=found.sources,
        )


def _not_started(allocation: Allocation) -> DataUnavailable:
    return DataUnavailable(
        f"Allocation {allocation.id} has not started, so there is nothing to measure.",
        hint=f"`lattice status {allocation.id}` says what it waits for.",
    )


def _stretch_of(job: JobAttempt, query: TopQuery, now: datetime) -> Stretch:
    """Return the time range of a query. Raises `UsageError` and `DataUnavailable`."""
    if query.duration_s is not None and not 0 < query.duration_s <= LONGEST_DURATION_S:
        raise UsageError(
            f"A duration has 1 to {LONGEST_DURATION_S} seconds.", hint="Write 5m, 2h or 1d."
        )
    started, ended = job.attempt.started, job.attempt.ended
    if started is None:
        raise _not_started(job.allocation)
    running = ended is None
    at = now if ended is None else ended
    lasted_s = max(1.0, (at - started).total_seconds())
    duration_s = query.duration_s
    if not running or duration_s is not None:
        # A finished attempt is shown whole, unless the query has a shorter duration.
        duration_s = math.ceil(min(duration_s or math.inf, lasted_s))
    return Stretch(at.timestamp(), lasted_s, running, duration_s)


def _nodes_of(attempt: Attempt) -> tuple[str, ...]:
    """Return the names of its nodes, in order."""
    try:
        return tuple(NodeSet.parse(attempt.nodes))
    except ValueError:
        return ()


def _tells(found: Found, query: TopQuery) -> bool:
    """Return True if the live snapshot is enough."""
    attempt = chosen_attempt(found.allocation, 0)
    return attempt.started is not None and query.attempt in {0, attempt.number}


def _has_gpus(job: JobAttempt) -> bool | None:
    gpus = job.allocation.gpus
    return None if gpus is None else gpus > 0


def _what_to_do(via: str) -> str:
    if via == SENSITIVE:
        return "Look at it while it runs: its agents' own values are shown then."
    return "Try again in a minute; the job is not affected."


def _origin(reading: _Reading, known: Known, summary: TopRow) -> MetricOrigin:
    assert summary.kind is RowKind.SUMMARY
    sources = [each.source for each in summary.cells if each.value is not None]
    source = max(sources, key=sources.count) if sources else Provenance.UNAVAILABLE
    reasons = (summary.reason, *(each.reason for each in summary.cells))
    reason = "" if sources else next(filter(None, reasons), "")
    last_error = reading.last_error or next(
        (c.last_error for c in summary.cells if c.last_error), ""
    )
    return MetricOrigin(
        source=source,
        age_s=summary.age_s,
        resolution_s=reading.interval_s,
        coverage=Coverage(max(0, reading.node_count - len(known.silent)), reading.node_count),
        reason=reason,
        last_error=last_error,
        via=reading.via,
    )
