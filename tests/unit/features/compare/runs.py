"""Runs of known truth: jobs of alice's and bob's, and a metric store that measured them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from lattice.access.actor import Actor
from lattice.access.limits import CallerLimits
from lattice.domain.allocation import Allocation, State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import BadQuery, SeriesPoints
from lattice.domain.runsummary import (
    CoarseSeries,
    RunSummary,
    asked_of,
    encoded,
    run_of,
    summary_key,
)
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.compare.model import CompareQuery, Comparison, metrics_named
from lattice.features.compare.service.compare import CompareService
from lattice.features.compare.wiring import compare_service
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.foundation import NoLimits, in_memory_foundation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")
GPU, CPU = "gpu_utilization_percent", "cpu_seconds_total"
Course = Callable[[float], float | None]
"""A value by the seconds since the start of the run; None: nothing was measured."""


def noise(count: int, phi: float, draw: random.Random) -> list[float]:
    """AR(1) with variance 1, from its stationary distribution."""
    kept, value, found = math.sqrt(1 - phi * phi), draw.gauss(0, 1), []
    for _ in range(count):
        found.append(value)
        value = phi * value + kept * draw.gauss(0, 1)
    return found


def course(
    level: float, *, seed: int, phi: float = 0.5, size: float = 1.0, **more: float
) -> Course:
    """A level under noise; `after_s` on it is `then`, and before `warm_s` it is 0."""
    wave = noise(20_000, phi, random.Random(seed))
    after_s, then, warm_s = more.get("after_s", math.inf), more.get("then", 0.0), more.get("warm_s")

    def value(at_s: float) -> float:
        if warm_s is not None and at_s < warm_s:
            return 0.0
        return (then if at_s >= after_s else level) + size * wave[int(at_s // 30) % len(wave)]

    return value


class MeasuredStore:
    """Answers for each run and series from its course; keeps what it was asked."""

    def __init__(self, begun: dict[str, float]) -> None:
        self.begun = begun
        self.courses: dict[tuple[str, str], Course] = {}
        self.asked: list[str] = []
        self.problem: Exception | None = None
        self.refuses = ""
        self.usual_s = 30.0
        self.intervals: dict[str, float] = {}
        """At which those runs were measured that were not at the usual one."""

    def _named(self, promql: str) -> tuple[str, str]:
        self.asked.append(promql)
        if self.problem is not None:
            raise self.problem
        series = re.findall(r"lattice_([a-z0-9_]+)\{", promql)
        (alloc,) = set(re.findall(r'alloc="([^"]*)"', promql))
        return alloc, series[-1]

    async def query(self, promql: str, *, at: float, within_s: float = 10.0) -> Any:  # noqa: ARG002
        alloc, _ = self._named(promql)
        if not any(each == alloc for each, _ in self.courses):
            return ()
        labels = {"node": "n1", "source": "host_local_probe"}
        (length_s,) = {float(each) for each in re.findall(r"\[(\d+)s\]", promql)}
        samples = length_s // self.intervals.get(alloc, self.usual_s)
        return (SeriesPoints(labels, ((at, samples),)),)

    async def query_range(
        self,
        promql: str,
        *,
        start: float,
        end: float,
        step_s: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[SeriesPoints, ...]:
        alloc, series = self._named(promql)
        if series == self.refuses:
            raise BadQuery("too many samples")
        found = self.courses.get((alloc, series))
        if found is None:
            return ()
        points, at = [], start
        while at <= end + 1e-6:
            value = found(at - step_s / 2 - self.begun[alloc])
            if value is not None:
                points.append((at, value))
            at += step_s
        return (SeriesPoints({}, tuple(points)),)

    async def series(self, match: str, **times: float) -> Any:
        raise AssertionError(match, times)

    async def write(self, series: Any) -> None:
        raise AssertionError(series)


class Site:
    """41 and 42 are alice's and took an hour each; 50 is bob's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.begun: dict[str, float] = {}
        self.store = MeasuredStore(self.begun)
        self.objects = InMemoryObjectStore(self.clock)
        self.state = InMemoryStateStore(self.clock)
        self.sharing = sharing_parts(self.state)
        self.limits: CallerLimits | None = None
        self.job(41)
        self.job(42)
        self.job(50, user="bob", account="genomics")

    def job(
        self,
        number: int,
        *,
        hours: float = 1.0,
        user: str = "alice",
        runs: bool = False,
        **facts: Any,
    ) -> Allocation:
        begun = self.clock.now() - timedelta(hours=hours, minutes=0 if runs else 30)
        ended = None if runs else begun + timedelta(hours=hours)
        made = allocation(
            number,
            user,
            facts.pop("account", "research"),
            **{
                "submitted": begun,
                "started": begun,
                "ended": ended,
                "state": State.RUNNING if runs else State.COMPLETED,
                "gpus": 4,
                "cpus": 16,
            }
            | facts,
        )
        self.scheduler.allocations = [
            each for each in self.scheduler.allocations if each.job_id != number
        ] + [made]
        self.begun[str(number)] = begun.timestamp()
        return made

    def measure(self, number: int, found: Course, series: str = GPU) -> None:
        self.store.courses[str(number), series] = found

    async def keep(
        self, number: int, metric: str, mean: Sequence[float | None], step_s: float
    ) -> None:
        (job,) = (each for each in self.scheduler.allocations if each.job_id == number)
        attempt = JobAttempt(job, attempts_of(job)[-1])
        line = CoarseSeries(
            metric=metric,
            unit="%",
            begin=self.begun[str(number)],
            step_s=step_s,
            mean=tuple(mean),
            peak=tuple(mean),
        )
        summary = RunSummary(
            written=self.clock.now(),
            run=run_of(attempt, self.clock.now()),
            asked=asked_of(attempt),
            used=(),
            origin=MetricOrigin(source=Provenance.HOST_LOCAL_PROBE, coverage=Coverage(1, 1)),
            series=(line,),
        )
        await self.objects.put_new(summary_key(attempt), encoded(summary))

    def service(self, **more: Any) -> CompareService:
        views = Vclusters((Vcluster("safe", VclusterKind.SENSITIVE, "safe"),))
        parts: dict[str, Any] = {
            "scheduler": self.scheduler,
            "metrics": more.pop("store", self.store),
            "objects": self.objects,
            "sharing": self.sharing,
            "views": views,
            "claims": FixedClaims((node_claim("alice", "n1"),)),
            "limits": self.limits or NoLimits(),
        } | more
        intervals = {self.store.usual_s, *self.store.intervals.values()}
        return compare_service(in_memory_foundation(self.clock, **parts), intervals)

    async def compare(
        self, *ids: str, actor: Actor = ALICE, metrics: str = "", **more: Any
    ) -> Comparison:
        query = CompareQuery(ids=ids or ("41", "42"), metrics=metrics_named((metrics,)))
        return await self.service(**more).compare(actor, query)
