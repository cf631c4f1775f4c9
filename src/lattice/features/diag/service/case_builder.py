"""Gathers all data for the rules, in parallel and with one deadline."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metricstore import BadQuery, MetricStore, Point, SeriesPoints, StoreSilent
from lattice.domain.node import Topology
from lattice.domain.node_snapshot import FactSource, NodeAnswer, NodeUnreachable
from lattice.domain.presence import Presences, lacks_of
from lattice.domain.promql import BadSelector
from lattice.domain.telemetry import ModeOf
from lattice.features.diag.model import TRACE_S, Case, Targets, TraceKey
from lattice.observe import windows
from lattice.observe.metric_query import FIGURE, Either, Figured, owner_filter
from lattice.observe.node_questions import nodes_of, started_s
from lattice.observe.shown_series import NODE, NODE_AND_GPU, shown_series

WITHIN_S = 3.0
_FEW = 50
_A_NODE_S = 0.01
_MOST_S = 7.0
"""The most extra time for many nodes, which take a server longer to ask."""
_STORE_S = 2.0
_GRACE_S = 0.5
"""Extra time after the timeout before a source counts as down."""
MOST_NODES = 2000
_RETENTION_S, _YOUNGEST_S = 900.0, 5.0
_Key = tuple[str, int]
PER_CARD_NODES = 64
"""Above this many nodes a trace combines all GPUs of a node, to keep the answer small."""
_MOST_POINTS = 20
TRACED = (Shown.GPU_UTILIZATION, Shown.GPU_POWER_DRAW, Shown.CPU_UTILIZATION)
NO_STORE = "no metric store is configured, so there is no past"
NO_FACTS = "this server can't ask nodes for facts"
NOT_IN_TIME = "it was not heard in time"
_Traces: TypeAlias = tuple[Mapping[TraceKey, tuple[Point, ...]], str]
_Answers: TypeAlias = tuple[tuple[NodeAnswer, ...], tuple[NodeUnreachable, ...]]


class PreviousFacts:
    """The last two readings of each attempt, for rates; few, and not for long.

    Without one, rates are reported as too early.
    """

    def __init__(self, clock: Clock, *, most_nodes: int = MOST_NODES) -> None:
        self._clock = clock
        self._most = most_nodes
        self._entries: OrderedDict[_Key, list[tuple[float, Mapping[str, NodeFacts]]]] = (
            OrderedDict()
        )

    def of(self, job: JobAttempt) -> Mapping[str, NodeFacts]:
        """Return the newest facts that are old enough for a rate, and not too old."""
        now_s = self._clock.monotonic()
        for taken_s, facts in reversed(self._entries.get(_key(job), [])):
            if _YOUNGEST_S <= now_s - taken_s <= _RETENTION_S:
                return facts
        return {}

    def keep(self, job: JobAttempt, facts: Mapping[str, NodeFacts]) -> None:
        if not facts:
            return
        now_s = self._clock.monotonic()
        readings = self._entries.pop(_key(job), [])
        if readings and now_s - readings[-1][0] < _YOUNGEST_S:
            # Keep the earlier reading: two readings this close make no rate.
            self._entries[_key(job)] = readings
            return
        self._entries[_key(job)] = [*readings[-1:], (now_s, facts)]
        while self._nodes() > self._most and len(self._entries) > 1:
            self._entries.popitem(last=False)

    def _nodes(self) -> int:
        return sum(len(facts) for readings in self._entries.values() for _, facts in readings)


def _key(job: JobAttempt) -> _Key:
    return job.allocation.ref, job.attempt.number


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSources:
    """The data sources; None if there is none."""

    facts: FactSource | None
    store: MetricStore | None
    modes: ModeOf
    presences: Presences


class CaseBuilder:
    """Builds cases. Never raises for a source that is down: that is part of the case."""

    def __init__(
        self, senses: DataSources, clock: Clock, targets: Targets, *, within_s: float = WITHIN_S
    ) -> None:
        self._senses = senses
        self._clock = clock
        self.targets = targets
        self._within_s = within_s
        self._earlier = PreviousFacts(clock)

    async def case(self, job: JobAttempt, topology: Topology) -> Case:
        nodes = nodes_of(job)
        interval_s = self._senses.modes(job.allocation.ref).interval_s
        now = self._clock.now().timestamp()
        within_s = self._within_s + min(max(0, len(nodes) - _FEW) * _A_NODE_S, _MOST_S)
        (checks, silences), traced = await asyncio.gather(
            self._facts(job, within_s),
            self._traced(job, len(nodes), interval_s, now),
        )
        facts = {each.node: each.facts for each in checks if each.facts is not None}
        earlier = self._earlier.of(job)
        self._earlier.keep(job, facts)
        incomplete = [NodeUnreachable(each.node, each.lacking) for each in checks if each.lacking]
        return Case(
            job=job,
            now=self._clock.now().timestamp(),
            interval_s=interval_s,
            nodes=nodes,
            groups=_groups(nodes, topology),
            sights={each.node: each.snapshot for each in checks if each.snapshot is not None},
            facts=facts,
            earlier=earlier,
            silences={each.node: each for each in (*silences, *incomplete)},
            traces=traced[0],
            no_traces=traced[1],
            lacks=self._lacks(nodes),
            targets=self.targets,
        )

    def _lacks(self, nodes: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        reading = self._senses.presences.presences()
        records = ((each, reading.records.get(each)) for each in nodes)
        return {node: lacks_of(record, reading) for node, record in records if record}

    async def _facts(self, job: JobAttempt, within_s: float) -> _Answers:
        if self._senses.facts is None:
            return (), tuple(NodeUnreachable(node, NO_FACTS) for node in nodes_of(job))
        try:
            async with asyncio.timeout(within_s + _GRACE_S):
                return await self._senses.facts.check(job, within_s=within_s)
        except TimeoutError:
            return (), tuple(NodeUnreachable(node, NOT_IN_TIME) for node in nodes_of(job))

    async def _traced(self, job: JobAttempt, nodes: int, interval_s: float, now: float) -> _Traces:
        store = self._senses.store
        if store is None:
            return {}, NO_STORE
        try:
            async with asyncio.timeout(_STORE_S + _GRACE_S):
                series = await store.query_range(
                    str(trace_query(job, nodes, interval_s, now)),
                    start=now - TRACE_S,
                    end=now,
                    step_s=trace_step_s(interval_s),
                    within_s=_STORE_S,
                )
        except TimeoutError:
            return {}, f"the metric store did not answer within {_STORE_S:g} s"
        except StoreSilent as silence:
            return {}, f"the metric store does not answer ({silence})"
        except BadQuery as refusal:
            return {}, f"the metric store can't answer this ({refusal})"
        except BadSelector:
            return {}, "Slurm does not say whose allocation this is"
        return read_traces(series), ""


def _groups(nodes: tuple[str, ...], topology: Topology) -> dict[str, str]:
    leaves = {
        node: switch.name
        for switch in topology.switches
        if switch.level == 0
        for node in switch.nodes
    }
    return {node: leaves[node] for node in nodes if node in leaves}


def trace_step_s(interval_s: float) -> int:
    """Return the seconds between points of a trace."""
    return windows.step_s(TRACE_S, interval_s, _MOST_POINTS)


def trace_query(job: JobAttempt, nodes: int, interval_s: float, now: float) -> Either:
    """Build one query for the traces of a job. Raises `BadSelector`."""
    owner = owner_filter(job)
    window = windows.live_window(interval_s, now - started_s(job), trace_step_s(interval_s))
    per_card = nodes <= PER_CARD_NODES
    return Either(
        tuple(
            Figured(
                each.value,
                shown_series(
                    owner, each, window, NODE_AND_GPU if per_card and SHOWN[each].per_gpu else NODE
                ),
            )
            for each in TRACED
        )
    )


def read_traces(series: Iterable[SeriesPoints]) -> dict[TraceKey, tuple[Point, ...]]:
    """Return points by metric, node and GPU, without NaN and infinity."""
    found: dict[TraceKey, tuple[Point, ...]] = {}
    known = {each.value: each for each in TRACED}
    for each in series:
        metric = known.get(each.labels.get(FIGURE, ""))
        points = tuple(point for point in each.points if math.isfinite(point[1]))
        if metric is not None and points:
            key = (metric, each.labels.get("node", ""), each.labels.get("gpu_uuid", ""))
            found[key] = points
    return found
