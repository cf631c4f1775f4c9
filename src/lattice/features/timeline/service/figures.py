"""Measured lines of one attempt: from its stored summary, else from the metric store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from datetime import UTC, datetime

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metricstore import BadQuery, MetricStore, StoreSilent
from lattice.domain.objects import BadKeyPart, NoObject, ObjectStore
from lattice.domain.promql import BadSelector
from lattice.domain.runsummary import BadSummary, decoded, summary_key
from lattice.features.timeline.model import MOST_LINE_POINTS, TimelineLine, TimelinePoint
from lattice.observe.shown_series import shown_series
from lattice.observe.windows import USUAL_S, RunSteps, RunWindow

FIGURES = (
    Shown.GPU_UTILIZATION,
    Shown.GPU_MEMORY_USED,
    Shown.CPU_UTILIZATION,
    Shown.MEMORY_USED,
    Shown.NETWORK_TX_BYTES,
    Shown.IO_READ_BYTES,
    Shown.IO_WRITE_BYTES,
)
VIA_SUMMARY, VIA_STORE = "kept summary", "store"
_PATIENCE_S = 15.0
_LATEST_MOMENT = 253_402_300_799.0


class NoFigures(Exception):
    """Why an attempt has no measured lines."""


class AttemptFigures:
    """Reads lines. Both stores are None if the site has none."""

    def __init__(
        self, store: MetricStore | None, objects: ObjectStore | None, clock: Clock
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock

    async def of(self, job: JobAttempt) -> tuple[TimelineLine, ...]:
        """The lines that have values. Raises `NoFigures`."""
        if job.attempt.ended is not None:
            stored = await self._summarized(job)
            if stored:
                return stored
        return await self._queried(job)

    async def _summarized(self, job: JobAttempt) -> tuple[TimelineLine, ...]:
        if self._objects is None:
            return ()
        try:
            summary = decoded(await self._objects.read(summary_key(job)))
        except (NoObject, BadKeyPart, BadSummary, Unavailable):
            return ()
        wanted = {each.value for each in FIGURES}
        lines = []
        for each in summary.series:
            if each.metric not in wanted or each.step_s <= 0:
                continue
            begun = each.begin + each.step_s / 2
            timed = ((begun + number * each.step_s, v) for number, v in enumerate(each.mean))
            points = _points(timed)
            if points:
                lines.append(
                    TimelineLine(
                        name=each.metric,
                        unit=each.unit,
                        attempt=job.attempt.number,
                        step_s=each.step_s,
                        via=VIA_SUMMARY,
                        points=points,
                    )
                )
        return tuple(lines)

    async def _queried(self, job: JobAttempt) -> tuple[TimelineLine, ...]:
        store = self._store
        if store is None:
            raise NoFigures("the server has no metric store")
        try:
            run = RunWindow.of(job, self._clock.now().timestamp())
            steps = run.steps(USUAL_S, MOST_LINE_POINTS)
            asked = (self._line(store, steps, each, job.attempt.number) for each in FIGURES)
            found = await asyncio.gather(*asked)
        except BadSelector:
            raise NoFigures("Slurm does not say whose it is") from None
        except StoreSilent:
            raise NoFigures("the metric store does not answer") from None
        except BadQuery as error:
            raise NoFigures(f"the metric store refused the question ({error})") from None
        lines = tuple(each for each in found if each.points)
        if not lines:
            if job.attempt.ended is None:
                raise NoFigures("nothing is measured yet")
            raise NoFigures("nothing was measured, or it is not kept any more")
        return lines

    async def _line(
        self, store: MetricStore, steps: RunSteps, metric: Shown, attempt: int
    ) -> TimelineLine:
        series = await store.query_range(
            str(shown_series(steps.run.owner, metric, steps.window)),
            start=steps.first,
            end=steps.last,
            step_s=steps.step_s,
            within_s=_PATIENCE_S,
        )
        # The value at the end of an interval describes its middle.
        middle_s, begin = steps.window.seconds(metric) / 2, steps.run.begin
        return TimelineLine(
            name=metric.value,
            unit=SHOWN[metric].unit,
            attempt=attempt,
            step_s=steps.step_s,
            via=VIA_STORE,
            points=_points(
                (max(at - middle_s, begin), v) for each in series[:1] for at, v in each.points
            ),
        )


def _points(values: Iterable[tuple[float, float | None]]) -> tuple[TimelinePoint, ...]:
    found = []
    for at, value in values:
        if value is not None and math.isfinite(value) and 0 <= at < _LATEST_MOMENT:
            found.append(TimelinePoint(time=datetime.fromtimestamp(at, UTC), value=value))
    return tuple(found)
