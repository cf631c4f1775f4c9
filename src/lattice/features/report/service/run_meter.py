"""Measures a run with the metric store, and with Slurm's accounting for what that lacks.

All figures are one query; a label on each value names its part. The queries use only Prometheus'
own PromQL.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Making, Shown
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import BadQuery, MetricStore, SeriesPoints, StoreSilent
from lattice.domain.promql import BadSelector
from lattice.domain.runsummary import (
    MOST_POINTS,
    Accounting,
    CoarseSeries,
    Figure,
    RunSummary,
    asked_of,
    run_of,
    unit_of,
)
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.features.report.service import run_figures
from lattice.features.report.service.run_figures import MissingFigure, StoreAnswer
from lattice.observe.metric_query import (
    FIGURE,
    Again,
    Either,
    Expression,
    Figured,
    Gather,
    Gathered,
    Moments,
    Over,
    Ranged,
)
from lattice.observe.shown_series import HEARTBEATS, NODE, NODE_AND_GPU, shown_series, stored_series
from lattice.observe.windows import COARSE_S, RunSteps, RunWindow, past_window

COUNTERS = (
    "cpu_seconds_total",
    "io_read_bytes_total",
    "io_write_bytes_total",
    "network_tx_bytes_total",
    "network_rx_bytes_total",
    "gpu_energy_joules_total",
)
_GROWTH = {"max": Over.MOST, "min": Over.LEAST, "resets": Over.RESETS, "increase": Over.INCREASE}
GAUGES = {
    "memory_used_bytes": ("max",),
    "memory_limit_bytes": ("max",),
    "memory_oom_kills_total": ("max",),
    "gpu_utilization_percent": ("avg", "max"),
    "gpu_memory_used_bytes": ("max",),
    "gpu_memory_total_bytes": ("max",),
}
_LEVELS = {"max": Over.MOST, "avg": Over.MEAN}
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
        return run_figures.covered(self.counts, nodes, self.steps.count)


class RunMeter:
    """Measures runs. `store` is None if the site has none."""

    def __init__(
        self,
        store: MetricStore | None,
        accounting: Accounting | None,
        clock: Clock,
        may_be_in_slice: Callable[[JobAttempt], bool] = lambda _: False,
    ) -> None:
        """Of a run that `may_be_in_slice`, Slurm's accounting counts the host and not the job."""
        self._store = store
        self._accounting = accounting
        self._clock = clock
        self._may_be_in_slice = may_be_in_slice

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
            found = await self._at_end(figures_question(run), run)
            answer = StoreAnswer(found)
            steps = coarse_steps(run, run.interval_s(answer.samples.values()))
            if not answer.nodes:
                return _Stored(steps=steps)
            busiest = busiest_question(steps)
            if busiest is not None:
                answer = StoreAnswer((*found, *await self._at_end(busiest, run)))
            seen = await self._range(covered_question(steps), steps)
        except BadSelector:
            return _Stored(why=MissingFigure("Slurm does not say whose it is"))
        except BadQuery as error:
            return _Stored(why=MissingFigure("the metric store refused the question", str(error)))
        return _Stored(answer, steps=steps, counts=run_figures.seen(seen))

    async def _summed(self, attempt: JobAttempt, stored: _Stored) -> RunSummary:
        now = self._clock.now()
        run, asked, answer = run_of(attempt, now), asked_of(attempt), stored.answer
        used = run_figures.used(answer, asked, run.wall_s, stored.why)
        of_guest = any(each.source == Provenance.SLICE_GUEST for each in used)
        if run.ended is not None and not of_guest and not self._may_be_in_slice(attempt):
            used = await self._accounted(attempt, used, run.wall_s)
        return RunSummary(
            written=now,
            run=run,
            asked=asked,
            used=used,
            wasted=run_figures.wasted(used, asked, run.wall_s, answer.partly(asked)),
            origin=_origin(stored, asked.nodes, used, now.timestamp()),
            covered=stored.covered(asked.nodes),
            per_node=run_figures.per_node(answer),
            per_gpu=run_figures.per_gpu(answer),
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
        return run_figures.with_accounted(used, accounted, asked_of(attempt), wall_s)

    async def _series(self, steps: RunSteps) -> tuple[CoarseSeries, ...]:
        """Return the series of every metric that was measured."""
        found = []
        for metric in Shown:
            try:
                series = await self._range(coarse_question(steps, metric), steps)
            except BadQuery as error:
                _log.warning("report: %s is not kept: %s", metric.value, error)
                continue
            coarse = _coarse(metric, series, steps)
            if coarse is not None:
                found.append(coarse)
        return tuple(found)

    async def _at_end(self, question: Expression, run: RunWindow) -> tuple[SeriesPoints, ...]:
        assert self._store is not None
        return await self._store.query(str(question), at=run.at, within_s=_PATIENCE_S)

    async def _range(self, question: Expression, steps: RunSteps) -> tuple[SeriesPoints, ...]:
        assert self._store is not None
        return await self._store.query_range(
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


def coarse_steps(run: RunWindow, interval_s: float) -> RunSteps:
    """Return the steps of the stored series."""
    return run.steps(interval_s, MOST_POINTS, COARSE_S)


def figures_question(run: RunWindow) -> Either:
    """Query all figures that are one number per node or GPU."""

    def part(name: str, over: Over, metric: str) -> Figured:
        return Figured(f"{name} {metric}", Ranged(over, run.owner.of(metric), run.whole_s))

    newest = Gathered(Gather.MOST, Moments(run.owner.of(HEARTBEATS[0])))
    return Either(
        (
            *(part(name, over, each) for each in COUNTERS for name, over in _GROWTH.items()),
            *(part(name, _LEVELS[name], each) for each, names in GAUGES.items() for name in names),
            *(part("count", Over.SAMPLES, each) for each in HEARTBEATS),
            Figured("newest", newest),
        )
    )


def busiest_question(steps: RunSteps) -> Figured | None:
    """Query the most cores in use at one time; None if the run was too short."""
    rate_s = steps.window.rate_s
    if steps.run.length_s < 2 * rate_s:
        return None
    cores = stored_series(steps.run.owner, Shown.CPU_UTILIZATION, steps.window)
    return Figured("busiest", Again(Over.MOST, cores, steps.run.whole_s, rate_s))


def covered_question(steps: RunSteps) -> Expression:
    """Query how many nodes were measured, step by step."""
    samples = Ranged(Over.SAMPLES, steps.run.owner.of(HEARTBEATS[0]), steps.step_s)
    return Gathered(Gather.COUNT, Gathered(Gather.COUNT, samples, NODE))


def coarse_question(steps: RunSteps, metric: Shown) -> Either:
    """Query the parts `mean` and `peak` of one metric, step by step.

    A peak is the highest value of a single node or GPU.
    """
    owner = steps.run.owner
    if SHOWN[metric].making is Making.RATE and steps.step_s > 2 * COARSE_S:
        finer = past_window(COARSE_S, steps.interval_s)
        rate = shown_series(owner, metric, finer, NODE_AND_GPU)
        each: Expression = Again(Over.MOST, rate, steps.step_s, COARSE_S)
    else:
        highest = replace(steps.window, gauge=Over.MOST)
        each = shown_series(owner, metric, highest, NODE_AND_GPU)
    return Either(
        (
            Figured("mean", shown_series(owner, metric, steps.window)),
            Figured("peak", Gathered(Gather.MOST, each)),
        )
    )
