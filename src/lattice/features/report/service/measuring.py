"""Measures a run with the metric store, and with Slurm's accounting for what that lacks."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.accounted import Accounting
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import BadQuery, MetricStore, SeriesPoints, StoreSilent
from lattice.domain.promql import BadSelector
from lattice.domain.runsummary import CoarseSeries, Figure, RunSummary, asked_of, run_of, unit_of
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.features.report.service import reckoning
from lattice.features.report.service.questions import (
    busiest_question,
    coarse_question,
    coarse_steps,
    covered_question,
    figures_question,
)
from lattice.features.report.service.reckoning import MissingFigure, StoreAnswer
from lattice.observe.metric_query import FIGURE, Expression
from lattice.observe.windows import RunSteps, RunWindow

_log = logging.getLogger(__name__)

_NO_STORE = MissingFigure("the server has no metric store")
_NOTHING_STORED = MissingFigure()
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class _Stored:
    """The store's data of a run."""

    answer: StoreAnswer = field(default_factory=lambda: StoreAnswer(()))
    why: MissingFigure = _NOTHING_STORED
    """Why there is no data."""
    steps: RunSteps | None = None
    """None if the store was not queried, or refused the query."""
    counts: tuple[float, ...] = ()
    """Number of measured nodes, step by step."""

    def covered(self, nodes: int) -> float | None:
        if self.steps is None:
            return None
        return reckoning.covered(self.counts, nodes, self.steps.count)


class RunMeter:
    """Measures runs. `store` is None if the site has none."""

    def __init__(
        self, store: MetricStore | None, accounting: Accounting | None, clock: Clock
    ) -> None:
        self._store = store
        self._accounting = accounting
        self._clock = clock

    async def summary(self, attempt: JobAttempt) -> RunSummary:
        """Return the current figures without series, with the reason if the store is down."""
        try:
            stored = await self._stored(attempt)
        except StoreSilent as error:
            stored = _Stored(why=MissingFigure("the metric store does not answer", str(error)))
        return await self._summed(attempt, stored)

    async def whole(self, attempt: JobAttempt) -> RunSummary:
        """Return the summary with its coarse series, to be stored. Raises `StoreSilent`."""
        stored = await self._stored(attempt)
        summary = await self._summed(attempt, stored)
        if stored.steps is None or not summary.covered:
            return summary
        return replace(summary, series=await self._series(stored.steps))

    async def _stored(self, attempt: JobAttempt) -> _Stored:
        """Query the store. Raises `StoreSilent`."""
        if self._store is None:
            return _Stored(why=_NO_STORE)
        try:
            run = RunWindow.of(attempt, self._clock.now().timestamp())
            found = await self._at_end(self._store, figures_question(run), run)
            answer = StoreAnswer(found)
            steps = coarse_steps(run, run.interval_s(answer.samples.values()))
            if not answer.nodes:
                return _Stored(steps=steps)
            busiest = busiest_question(steps)
            if busiest is not None:
                answer = StoreAnswer((*found, *await self._at_end(self._store, busiest, run)))
            seen = await self._range(self._store, covered_question(steps), steps)
        except BadSelector:
            return _Stored(why=MissingFigure("Slurm does not say whose it is"))
        except BadQuery as error:
            return _Stored(why=MissingFigure("the metric store refused the question", str(error)))
        return _Stored(answer, steps=steps, counts=reckoning.seen(seen))

    async def _summed(self, attempt: JobAttempt, stored: _Stored) -> RunSummary:
        now = self._clock.now()
        run, asked, answer = run_of(attempt, now), asked_of(attempt), stored.answer
        used = reckoning.used(answer, asked, run.wall_s, stored.why)
        if run.ended is not None:
            used = await self._accounted(attempt, used, run.wall_s)
        return RunSummary(
            written=now,
            run=run,
            asked=asked,
            used=used,
            wasted=reckoning.wasted(used, asked, run.wall_s, answer.partly(asked)),
            origin=_origin(stored, asked.nodes, used, now.timestamp()),
            covered=stored.covered(asked.nodes),
            per_node=reckoning.per_node(answer),
            per_gpu=reckoning.per_gpu(answer),
        )

    async def _accounted(
        self, attempt: JobAttempt, used: tuple[Figure, ...], wall_s: float
    ) -> tuple[Figure, ...]:
        if self._accounting is None:
            return used
        try:
            accounted = await self._accounting.used(attempt)
        except LatticeError as error:
            _log.info("report of %s: %s", attempt.allocation.ref, error.message)
            return used
        if accounted is None:
            return used
        return reckoning.with_accounted(used, accounted, asked_of(attempt), wall_s)

    async def _series(self, steps: RunSteps) -> tuple[CoarseSeries, ...]:
        """Return the series of every metric that was measured."""
        assert self._store is not None
        found = []
        for metric in Shown:
            try:
                series = await self._range(self._store, coarse_question(steps, metric), steps)
            except BadQuery as error:
                _log.warning("report: %s is not kept: %s", metric.value, error)
                continue
            coarse = _coarse(metric, series, steps)
            if coarse is not None:
                found.append(coarse)
        return tuple(found)

    @staticmethod
    async def _at_end(
        store: MetricStore, question: Expression, run: RunWindow
    ) -> tuple[SeriesPoints, ...]:
        return await store.query(str(question), at=run.at, within_s=_PATIENCE_S)

    @staticmethod
    async def _range(
        store: MetricStore, question: Expression, steps: RunSteps
    ) -> tuple[SeriesPoints, ...]:
        return await store.query_range(
            str(question),
            start=steps.first,
            end=steps.last,
            step_s=steps.step_s,
            within_s=_PATIENCE_S,
        )


def _coarse(
    metric: Shown, series: tuple[SeriesPoints, ...], steps: RunSteps
) -> CoarseSeries | None:
    lines = {each.labels.get(FIGURE): _in_steps(each, steps) for each in series if each.points}
    nothing: tuple[float | None, ...] = (None,) * steps.count
    mean, peak = lines.get("mean", nothing), lines.get("peak", nothing)
    if all(each is None for each in (*mean, *peak)):
        return None
    return CoarseSeries(
        metric=metric.value,
        unit=unit_of(metric),
        begin=steps.run.begin,
        step_s=steps.step_s,
        mean=mean,
        peak=peak,
    )


def _in_steps(series: SeriesPoints, steps: RunSteps) -> tuple[float | None, ...]:
    found: list[float | None] = [None] * steps.count
    for time, value in series.points:
        step = round((time - steps.first) / steps.step_s)
        if 0 <= step < steps.count and math.isfinite(value):
            # Six significant digits halve the size of the document, and means are no more precise.
            found[step] = float(f"{value:.6g}")
    return tuple(found)


def _origin(stored: _Stored, nodes: int, used: tuple[Figure, ...], now: float) -> MetricOrigin:
    answer, why = stored.answer, stored.why
    measured = answer.nodes
    sources = [each.source for each in used if each.value is not None]
    order = [each.value for each in Provenance]
    nearest = min(sources, key=order.index, default=Provenance.UNAVAILABLE.value)
    newest, counted = answer.single("newest"), answer.of("count cpu_seconds_total")
    samples = max((each.value for each in counted.values()), default=0.0)
    resolution_s = None
    if stored.steps is not None and samples > 1:
        run = stored.steps.run
        resolution_s = round(((newest or run.end) - run.begin) / (samples - 1), 1)
    return MetricOrigin(
        source=Provenance(nearest),
        age_s=None if newest is None else max(0.0, now - newest),
        resolution_s=resolution_s,
        coverage=Coverage(min(len(measured), nodes), nodes),
        reason="" if measured else why.reason,
        last_error="" if measured else why.last_error,
        via="store" if measured else "",
    )
