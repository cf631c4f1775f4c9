"""One look at a job for one caller: from the metric store, or else from the agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lattice.access.actor import Actor
from lattice.access.allocation_finder import Found
from lattice.access.limits import CallerLimits, Questions
from lattice.access.output import OutputAccess
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.moment import age, silence
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt, attempts_of, chosen_attempt, named
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metric import Absence, Provenance
from lattice.domain.metricstore import BadQuery, MetricStore, StoreSilent
from lattice.domain.node_snapshot import NodeSnapshots
from lattice.domain.promql import BadSelector
from lattice.domain.scheduler import Scheduler
from lattice.domain.sharing import ReadKind
from lattice.domain.telemetry import Coverage, MetricOrigin, ModeOf
from lattice.features.top.model import (
    RowKind,
    TopAnswer,
    TopMode,
    TopQuery,
    TopRow,
    columns_of,
    metrics_of,
)
from lattice.features.top.service.attempt import (
    Stretch,
    nodes_of,
    not_started,
    stretch_of,
)
from lattice.features.top.service.reasons import Reasons, silence_words
from lattice.features.top.service.shaping import JUST_BEGUN, Known, rows_of
from lattice.features.top.service.sights import figures_of
from lattice.features.top.service.stored import StoredLook, StoredValues
from lattice.observe.metric_query import owner_filter
from lattice.observe.windows import fresh_s

NO_STORE = "agents (no metric store is configured)"
STORE_SILENT = "agents (the metric store does not answer)"
STORE_REFUSES = "agents (the metric store can't answer this)"
SENSITIVE = "agents (sensitive work does not stand in the shared store)"
UNBORN = f"{JUST_BEGUN}; no sample of it is stored yet"
_AGENTS_S = 3.0


@dataclass(slots=True)
class _Look:
    """The intermediate results of one look."""

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
        door: OutputAccess,
        store: MetricStore | None,
        looks: NodeSnapshots | None,
        modes: ModeOf,
        clock: Clock,
        limits: CallerLimits | None = None,
        degraded: Callable[[], str] = lambda: "",
        *,
        is_sensitive: Callable[[Allocation], bool] = lambda _: False,
    ) -> None:
        self._scheduler = scheduler
        self._door = door
        self._stored = StoredValues(store) if store is not None else None
        self._looks = looks
        self._modes = modes
        self._clock = clock
        self._limits = limits
        self._degraded = degraded
        self._is_sensitive = is_sensitive
        self._reasons = Reasons(looks, clock)
        self._silent_since_s: float | None = None

    async def look(self, actor: Actor, name: str, query: TopQuery) -> TopAnswer:
        """Return the job's resource use.

        Raises what the finder raises, `RateLimited`, `Unavailable` and `DataUnavailable`.
        """
        if self._limits is not None:
            await self._limits.ask(actor.sub, Questions.QUERY_METRICS)
        found, job = await self._found(actor, name, query)
        await self._door.enter(actor, found, ReadKind.READ)
        now = self._clock.now()
        stretch = stretch_of(job, query, now)
        interval_s = self._modes(job.allocation.ref).interval_s
        look = _Look(job, query, stretch, interval_s, nodes_of(job.attempt))
        known = await self._known(look)
        return self._answer(found, look, known)

    async def _found(self, actor: Actor, name: str, query: TopQuery) -> tuple[Found, JobAttempt]:
        found = self._door.find_live(actor, name)
        if found is None or not _tells(found, query):
            found = await self._door.find(actor, name)
            if chosen_attempt(found.allocation, query.attempt).started is None:
                # It may have started since the last snapshot of Slurm.
                await self._scheduler.fresh()
                found = await self._door.find(actor, name)
        attempt = chosen_attempt(found.allocation, query.attempt)
        if attempt.started is None:
            raise not_started(found.allocation)
        accounts = self._scheduler.live().cluster.accounts
        return found, named(found.allocation, attempt, accounts, self._clock.now())

    async def _known(self, look: _Look) -> Known:
        if self._stored is None:
            return await self._from_agents(look, NO_STORE)
        if self._is_sensitive(look.job.allocation):
            return await self._from_agents(look, SENSITIVE)
        try:
            owner = owner_filter(look.job)
        except BadSelector:
            raise Unavailable(
                f"Slurm does not say whose allocation {look.job.allocation.id} is.",
                hint="Try again in a minute.",
            ) from None
        try:
            stored = await self._stored.look(
                owner, look.query, look.stretch, look.interval_s, look.nodes
            )
        except StoreSilent as silence:
            self._silent_since_s = self._silent_since_s or self._clock.monotonic()
            look.last_error = str(silence)
            return await self._from_agents(look, STORE_SILENT)
        except BadQuery as refusal:
            look.last_error = str(refusal)
            return await self._from_agents(look, STORE_REFUSES)
        self._silent_since_s = None
        look.notes += stored.notes
        look.queries = stored.queries
        return await self._explained(look, stored)

    async def _explained(self, look: _Look, stored: StoredLook) -> Known:
        """Add the reasons for missing values, as far as nodes report them."""
        unborn = look.stretch.running and look.stretch.lasted_s < stored.fresh_s
        silent = dict.fromkeys(
            stored.silent, UNBORN if unborn else f"no sample in the last {stored.fresh_s} s"
        )
        mode, figures = look.query.mode, stored.figures
        has_gpus = _has_gpus(look.job)
        wanted = [each for each in metrics_of(mode) if not (SHOWN[each].per_gpu and not has_gpus)]
        lacking = stored.lacking(mode, wanted, look.nodes)
        if mode is TopMode.SUMMARY:
            lacking = lacking[:1]
        missing: dict[tuple[Shown, str], Absence] = {}
        if look.stretch.running and (silent or lacking):
            for node, word in (await self._reasons.of(look.job, (*silent, *lacking))).items():
                if node not in silent:
                    missing |= {(each, node): told for each, told in word.absences.items()}
                elif word.silence:
                    silent[node] = f"{word.silence}; {JUST_BEGUN}" if unborn else word.silence
                elif not unborn:
                    silent[node] += ", though its agent answers"
        return Known(
            figures=figures,
            nodes=look.nodes,
            at=look.stretch.at,
            now=self._clock.now().timestamp(),
            fresh_s=stored.fresh_s,
            running=look.stretch.running,
            young=look.is_young,
            silent=silent,
            missing=missing,
            over_time=look.stretch.duration_s is not None,
            has_gpus=has_gpus,
            summary=stored.summary,
        )

    async def _from_agents(self, look: _Look, via: str) -> Known:
        if not look.stretch.running or self._looks is None:
            raise Unavailable(
                f"What allocation {look.job.allocation.id} used can't be told now: "
                f"{_why(via)}{f' ({look.last_error})' if look.last_error else ''}.",
                hint=_what_to_do(via),
            )
        look.via = via
        if self._silent_since_s is not None:
            away_s = self._clock.monotonic() - self._silent_since_s
            look.notes.append(
                f"The metric store {silence(away_s)}; these are the agents' own values, and there "
                "is no past."
            )
        if look.stretch.duration_s is not None:
            look.notes.append("The values are those of now, not of the time that was asked for.")
            look.stretch = replace(look.stretch, duration_s=None)
        sights, silences = await self._looks.look(look.job, within_s=_AGENTS_S)
        current_s = fresh_s(look.interval_s)
        fresh = [each for each in sights if look.stretch.at - each.now.time <= current_s]
        figures, missing = figures_of(look.query.mode, fresh)
        told = {each.node for each in fresh}
        silent = {node: "its agent has told nothing" for node in look.nodes if node not in told}
        silent |= {each.node: silence_words(each, self._clock) for each in silences}
        silent |= {
            each.node: f"it has not measured for {age(look.stretch.at - each.now.time)}"
            for each in sights
            if each.node not in told
        }
        return Known(
            figures=figures,
            nodes=look.nodes,
            at=look.stretch.at,
            now=self._clock.now().timestamp(),
            fresh_s=current_s,
            young=look.is_young,
            silent=silent,
            missing=missing,
            has_gpus=_has_gpus(look.job),
        )

    def _answer(self, found: Found, look: _Look, known: Known) -> TopAnswer:
        allocation, attempt = look.job.allocation, look.job.attempt
        rows = rows_of(look.query.mode, known)
        degraded = self._degraded()
        return TopAnswer(
            allocation=allocation.ref,
            id=allocation.id,
            name=allocation.name,
            attempt=attempt.number,
            attempts=max(len(attempts_of(allocation)), allocation.attempt),
            state=attempt.state,
            nodes=attempt.nodes,
            node_count=look.node_count,
            started=attempt.started,
            ended=attempt.ended,
            taken=self._clock.now(),
            mode=look.query.mode,
            duration_s=look.stretch.duration_s,
            origin=_origin(look, known, rows[0]),
            columns=columns_of(look.query.mode),
            rows=rows,
            notes=(*([degraded] if degraded else []), *look.notes),
            queries=look.queries if look.query.explain else (),
            sources=found.sources,
        )


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


def _why(via: str) -> str:
    return via.partition("(")[2].rstrip(")")


def _origin(look: _Look, known: Known, summary: TopRow) -> MetricOrigin:
    assert summary.kind is RowKind.SUMMARY
    measured = {each.source for each in summary.cells if each.value is not None}
    sources = [each.source for each in summary.cells if each.value is not None]
    source = max(sources, key=sources.count) if measured else Provenance.UNAVAILABLE
    reason = "" if measured else summary.reason or _first_reason(summary)
    last_error = look.last_error or next((c.last_error for c in summary.cells if c.last_error), "")
    return MetricOrigin(
        source=source,
        age_s=summary.age_s,
        resolution_s=look.interval_s,
        coverage=Coverage(max(0, look.node_count - len(known.silent)), look.node_count),
        reason=reason,
        last_error=last_error,
        via=look.via,
    )


def _first_reason(summary: TopRow) -> str:
    return next((each.reason for each in summary.cells if each.reason), "")
