"""Measures a run: asks the metric store, and Slurm's accounting for what that does not have."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.accounted import Accounting
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import BadQuery, MetricStore, SeriesPoints, StoreSilent
from lattice.domain.promql import scope_of
from lattice.domain.runsummary import CoarseSeries, Figure, RunSummary, asked_of, run_of, unit_of
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.features.report.service import reckoning
from lattice.features.report.service.questions import (
    PART,
    Lifetime,
    coarse_question,
    covered_question,
    figures_question,
    lifetime,
)
from lattice.features.report.service.reckoning import Answer, Missing

_log = logging.getLogger(__name__)

_NO_STORE = Missing("the server has no metric store")
_PATIENCE_S = 20.0
Counts: TypeAlias = tuple[float, ...] | None


class RunMeter:
    """`store` is None where the site has none."""

    def __init__(
        self, store: MetricStore | None, accounting: Accounting | None, clock: Clock
    ) -> None:
        self._store = store
        self._accounting = accounting
        self._clock = clock

    async def summary(self, attempt: JobAttempt) -> RunSummary:
        """What is known of it now, without its series. A silent store is a reason in it."""
        life = self._life(attempt)
        try:
            return await self._summed(attempt, life, *await self._asked(life))
        except StoreSilent as error:
            why = Missing("the metric store does not answer", str(error))
        except BadQuery as error:
            why = Missing("the metric store refused the question", str(error))
        return await self._summed(attempt, life, Answer(()), None, why)

    async def whole(self, attempt: JobAttempt) -> RunSummary:
        """The same with its coarse series, to be kept. Raises `StoreSilent`."""
        life = self._life(attempt)
        try:
            told = await self._asked(life)
        except BadQuery as error:
            told = (Answer(()), None, Missing("the metric store refused the question", str(error)))
        summary = await self._summed(attempt, life, *told)
        return replace(summary, series=await self._series(life) if summary.covered else ())

    def _life(self, attempt: JobAttempt) -> Lifetime:
        return lifetime(attempt, scope_of(attempt), self._clock.now().timestamp())

    async def _asked(self, life: Lifetime) -> tuple[Answer, Counts, Missing]:
        """The figures, how many nodes were measured stretch by stretch, and why there is none."""
        if self._store is None:
            return Answer(()), None, _NO_STORE
        answer = Answer(
            await self._store.query(figures_question(life), at=life.at, within_s=_PATIENCE_S)
        )
        seen = await self._range(covered_question(life), life) if answer.nodes else ()
        return answer, reckoning.seen(seen), Missing()

    async def _summed(
        self, attempt: JobAttempt, life: Lifetime, answer: Answer, seen: Counts, why: Missing
    ) -> RunSummary:
        now = self._clock.now()
        run, asked = run_of(attempt, now), asked_of(attempt)
        used = reckoning.used(answer, asked, run.wall_s, why)
        if run.ended is not None:
            used = await self._accounted(attempt, used, run.wall_s)
        return RunSummary(
            written=now,
            run=run,
            asked=asked,
            used=used,
            wasted=reckoning.wasted(used, asked, run.wall_s, answer.partly(asked)),
            origin=_origin(answer, asked.nodes, used, why, now.timestamp(), life),
            covered=None if seen is None else reckoning.covered(seen, asked.nodes, life.steps),
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

    async def _series(self, life: Lifetime) -> tuple[CoarseSeries, ...]:
        """Of every shown metric that was measured at all."""
        found = []
        for metric in Shown:
            try:
                series = await self._range(coarse_question(life, metric), life)
            except BadQuery as error:
                _log.warning("report: %s is not kept: %s", metric.value, error)
                continue
            coarse = _coarse(metric, series, life)
            if coarse is not None:
                found.append(coarse)
        return tuple(found)

    async def _range(self, question: str, life: Lifetime) -> tuple[SeriesPoints, ...]:
        assert self._store is not None
        return await self._store.query_range(
            question,
            start=life.begin + life.step_s,
            end=life.begin + life.steps * life.step_s,
            step_s=life.step_s,
            within_s=_PATIENCE_S,
        )


def _coarse(metric: Shown, series: tuple[SeriesPoints, ...], life: Lifetime) -> CoarseSeries | None:
    lines = {each.labels.get(PART): _in_steps(each, life) for each in series if each.points}
    nothing: tuple[float | None, ...] = (None,) * life.steps
    mean, peak = lines.get("mean", nothing), lines.get("peak", nothing)
    if all(each is None for each in (*mean, *peak)):
        return None
    return CoarseSeries(
        metric=metric.value,
        unit=unit_of(metric),
        begin=life.begin,
        step_s=life.step_s,
        mean=mean,
        peak=peak,
    )


def _in_steps(series: SeriesPoints, life: Lifetime) -> tuple[float | None, ...]:
    found: list[float | None] = [None] * life.steps
    for time, value in series.points:
        # A stretch is answered for at its end.
        step = round((time - life.begin) / life.step_s) - 1
        if 0 <= step < life.steps and math.isfinite(value):
            # Six digits that count: the document is half as large, and means are no finer.
            found[step] = float(f"{value:.6g}")
    return tuple(found)


def _origin(
    answer: Answer,
    nodes: int,
    used: tuple[Figure, ...],
    why: Missing,
    now: float,
    life: Lifetime,
) -> MetricOrigin:
    measured = answer.nodes
    sources = [each.source for each in used if each.value is not None]
    order = [each.value for each in Provenance]
    nearest = min(sources, key=order.index, default=Provenance.UNAVAILABLE.value)
    newest, counted = answer.single("newest"), answer.of("count cpu_seconds_total")
    samples = max((each.value for each in counted.values()), default=0.0)
    passed_s = (newest or life.end) - life.begin
    return MetricOrigin(
        source=Provenance(nearest),
        age_s=None if newest is None else max(0.0, now - newest),
        resolution_s=round(passed_s / (samples - 1), 1) if samples > 1 else None,
        coverage=Coverage(min(len(measured), nodes), nodes),
        reason="" if measured else why.reason,
        last_error="" if measured else why.last_error,
        via="store" if measured else "",
    )
