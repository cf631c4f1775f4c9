"""Reads the series of a run from the metric store, or from its summary after retention."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import BadQuery, MetricStore, StoreSilent
from lattice.domain.objects import BadKeyPart, NoObject, ObjectStore
from lattice.domain.promql import BadSelector
from lattice.domain.runsummary import BadSummary, RunSummary, decoded, summary_key
from lattice.domain.statistics.track import Track, track_of
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.observe.metric_query import Either, Expression, Gather, Gathered, Over, Ranged
from lattice.observe.shown_series import HEARTBEATS, shown_series
from lattice.observe.windows import INTERVALS, RunSteps, RunWindow

_log = logging.getLogger(__name__)

VIA_STORE, VIA_SUMMARY = "store", "kept summary"
MOST_SAMPLES = 2880
"""Per metric and run: a day at 30 s."""
_PATIENCE_S = 20.0
_AT_ONCE = 4
_ENOUGH = 0.8
"""If the store covers this share of the run, the stored summary is not read."""
NO_STORE = "the server has no metric store"
SILENT = "the metric store does not answer"
FORGOTTEN = "the metric store has nothing of this run"
NO_SUMMARY = "and no summary of it is kept"


@dataclass(frozen=True, slots=True)
class RunSeries:
    """The series of one run by metric; a missing metric was not measured."""

    tracks: Mapping[Shown, Track]
    origin: MetricOrigin
    written: datetime | None = None
    refused: Mapping[Shown, str] = field(default_factory=dict)
    """Metrics that the store could not answer, with its error message."""

    @property
    def covered(self) -> float:
        """The share of the run's time with data."""
        shares = (each.measured / max(len(each.values), 1) for each in self.tracks.values())
        return max(shares, default=0.0)

    @property
    def begins_s(self) -> float | None:
        """Seconds from the start of the run to the first data; None without data."""
        begins = [each.begins_s for each in self.tracks.values() if each.begins_s is not None]
        return min(begins, default=None)


class SeriesSource:
    """Reads series. `store` and `objects` are None if the site has none."""

    def __init__(
        self,
        store: MetricStore | None,
        objects: ObjectStore | None,
        clock: Clock,
        intervals: Collection[float] = INTERVALS,
    ) -> None:
        """`intervals` are the sampling intervals that runs may have."""
        self._store = store
        self._objects = objects
        self._clock = clock
        self._intervals = intervals
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def of(self, job: JobAttempt, metrics: Sequence[Shown]) -> RunSeries:
        """Return its series and their source. Missing data is a reason, never an error."""
        stored = await self._stored(job, metrics)
        if job.attempt.ended is None or stored.covered >= _ENOUGH:
            return stored
        summarized = await self._from_summary(job, metrics)
        if summarized is not None and _has_forgotten(stored, summarized):
            return summarized
        if stored.tracks:
            return stored
        reason = f"{stored.origin.reason}, {NO_SUMMARY}"
        return replace(stored, origin=replace(stored.origin, reason=reason))

    async def _stored(self, job: JobAttempt, metrics: Sequence[Shown]) -> RunSeries:
        if self._store is None:
            return _nothing(job, NO_STORE)
        try:
            run = RunWindow.of(job, self._clock.now().timestamp())
            origin, steps = await self._origin(self._store, job, run)
            if steps is None:
                return RunSeries({}, origin)
            found = await self._tracks(self._store, steps, metrics)
        except BadSelector:
            return _nothing(job, "Slurm does not say whose it is")
        except StoreSilent as error:
            return _nothing(job, SILENT, str(error))
        tracks = {each: track for each, track in found.items() if isinstance(track, Track)}
        refused = {each: message for each, message in found.items() if isinstance(message, str)}
        aged = replace(origin, age_s=self._age_s(steps, tracks))
        return RunSeries(tracks, aged, refused=refused)

    async def _tracks(
        self, store: MetricStore, steps: RunSteps, metrics: Sequence[Shown]
    ) -> dict[Shown, Track | str | None]:
        """Return the track of each metric, or why the store failed. Raises `StoreSilent`."""
        silence: StoreSilent | None = None
        tasks: dict[Shown, asyncio.Task[Track | str | None]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for each in metrics:
                    asked = self._track(store, steps, each)
                    tasks[each] = group.create_task(asked, name=f"compare {each.value}")
        except* StoreSilent as problems:
            silence = StoreSilent(str(problems.exceptions[0]))
        if silence is not None:
            raise silence
        return {each: task.result() for each, task in tasks.items()}

    async def _track(
        self, store: MetricStore, steps: RunSteps, metric: Shown
    ) -> Track | str | None:
        try:
            async with self._room:
                series = await store.query_range(
                    str(series_question(steps, metric)),
                    start=steps.first,
                    end=steps.last,
                    step_s=steps.step_s,
                    within_s=_PATIENCE_S,
                )
        except BadQuery as error:
            return f"the metric store refused the question ({error})"
        # The value at the end of an interval describes its middle.
        middle_s = steps.run.begin + steps.window.seconds(metric) / 2
        points = [
            (time - middle_s, value)
            for each in series
            for time, value in each.points
            if math.isfinite(value)
        ]
        return track_of(points, steps.step_s, steps.count * steps.step_s) if points else None

    async def _origin(
        self, store: MetricStore, job: JobAttempt, run: RunWindow
    ) -> tuple[MetricOrigin, RunSteps | None]:
        """Return who measured the run and how often; None for the steps if nobody did."""
        try:
            async with self._room:
                found = await store.query(
                    str(origin_question(run)), at=run.at, within_s=_PATIENCE_S
                )
        except BadQuery as error:
            reason = "the metric store refused the question"
            return _nothing(job, reason, str(error)).origin, None
        sources = [each.labels.get("source", "") for each in found]
        known = [each for each in sources if each in set(Provenance)]
        if not known:
            return _nothing(job, FORGOTTEN).origin, None
        samples: dict[str, float] = {}
        for each in found:
            node = each.labels.get("node", "")
            samples[node] = max(samples.get(node, 0.0), each.points[-1][1])
        interval_s = run.interval_s(samples.values(), self._intervals)
        steps = run.steps(interval_s, MOST_SAMPLES)
        had = job.attempt.node_count or len(samples)
        origin = MetricOrigin(
            source=Provenance(max(known, key=known.count)),
            resolution_s=float(steps.step_s),
            coverage=Coverage(min(len(samples), had), had),
            via=VIA_STORE,
        )
        return origin, steps

    def _age_s(self, steps: RunSteps, tracks: Mapping[Shown, Track]) -> float | None:
        newest = [
            max(at for at, value in enumerate(each.values) if value is not None)
            for each in tracks.values()
            if each.measured
        ]
        if not newest:
            return None
        until = steps.run.begin + (max(newest) + 1) * steps.step_s
        return max(0.0, self._clock.now().timestamp() - until)

    async def _from_summary(self, job: JobAttempt, metrics: Sequence[Shown]) -> RunSeries | None:
        summary = await self._summary(job)
        if summary is None:
            return None
        wanted = {each.value: each for each in metrics}
        tracks = {
            wanted[each.metric]: Track(each.step_s, each.mean)
            for each in summary.series
            if each.metric in wanted and each.step_s > 0
        }
        passed_s = max(0.0, (self._clock.now() - summary.written).total_seconds())
        age_s = summary.origin.age_s
        step_s = max((each.step_s for each in tracks.values()), default=None)
        origin = replace(
            summary.origin,
            age_s=None if age_s is None else age_s + passed_s,
            resolution_s=step_s if step_s is not None else summary.origin.resolution_s,
            via=VIA_SUMMARY,
        )
        return RunSeries(tracks, origin, summary.written)

    async def _summary(self, job: JobAttempt) -> RunSummary | None:
        if self._objects is None:
            return None
        try:
            return decoded(await self._objects.read(summary_key(job)))
        except (NoObject, BadKeyPart):
            return None
        except BadSummary as error:
            _log.warning("compare: what is kept of %s does not read: %s", job.allocation.ref, error)
        except Unavailable as error:
            _log.info("compare: what is kept of %s: %s", job.allocation.ref, error.message)
        return None


def _has_forgotten(stored: RunSeries, summarized: RunSeries) -> bool:
    """Return True if the store lacks the beginning of the run and the summary has it.

    A store drops the oldest samples first. Data that is missing elsewhere was not measured: the
    summary comes from the same samples, and its long intervals only hide the gap.
    """
    if summarized.begins_s is None:
        return False
    if stored.begins_s is None:
        return True
    longest_s = max(each.step_s for each in summarized.tracks.values())
    return stored.begins_s > summarized.begins_s + longest_s


def _nothing(job: JobAttempt, reason: str, last_error: str = "") -> RunSeries:
    coverage = Coverage(0, job.attempt.node_count)
    origin = MetricOrigin(
        source=Provenance.UNAVAILABLE, coverage=coverage, reason=reason, last_error=last_error
    )
    return RunSeries({}, origin)


def series_question(steps: RunSteps, metric: Shown) -> Expression:
    """Query one metric over all nodes and GPUs as one series, step by step."""
    return shown_series(steps.run.owner, metric, steps.window)


def origin_question(run: RunWindow) -> Either:
    """Query who measured on which node, and how often, over the whole run."""
    samples = (Ranged(Over.SAMPLES, run.owner.of(each), run.whole_s) for each in HEARTBEATS)
    return Either(tuple(Gathered(Gather.MOST, each, ("source", "node")) for each in samples))
