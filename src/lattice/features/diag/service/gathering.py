"""Everything that rules read, asked for at once and with one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.domain.attempts import JobAttempt
from lattice.domain.factfinding import FactFinding
from lattice.domain.jobfacts import NodeFacts
from lattice.domain.metricstore import BadQuery, MetricStore, Point, StoreSilent
from lattice.domain.node import Topology
from lattice.domain.nodelook import NodeLooks, NodeSight, NodeSilence
from lattice.domain.nodeset import NodeSet
from lattice.domain.promql import BadSelector
from lattice.domain.telemetry import ModeOf
from lattice.features.diag.model import TRACE_S, Case, Targets, TraceKey
from lattice.features.diag.service import traces
from lattice.features.diag.service.remembering import EarlierFacts

WITHIN_S = 3.0
_A_NODE_S = 0.01
_MOST_S = 10.0
"""Many nodes take a server longer to ask, and none of them is silent for that."""
_STORE_S = 2.0
_GRACE_S = 0.5
"""Beyond what was granted, before it counts as silent all the same."""
NO_STORE = "no metric store is configured, so there is no past"
NO_FACTS = "this server can't ask nodes for facts"
_Traces: TypeAlias = tuple[Mapping[TraceKey, tuple[Point, ...]], str]
_Silences: TypeAlias = tuple[NodeSilence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Senses:
    """Who is asked. None: there is nobody."""

    looks: NodeLooks | None
    facts: FactFinding | None
    store: MetricStore | None
    modes: ModeOf


class Gathering:
    """Makes cases. Never raises for who is silent: that is a part of the case."""

    def __init__(
        self, senses: Senses, clock: Clock, targets: Targets, *, within_s: float = WITHIN_S
    ) -> None:
        self._senses = senses
        self._clock = clock
        self._targets = targets
        self._within_s = within_s
        self._earlier = EarlierFacts(clock)

    async def case(self, job: JobAttempt, topology: Topology) -> Case:
        """Of a running attempt."""
        nodes = nodes_of(job)
        interval_s = self._senses.modes(job.allocation.ref).interval_s
        now = self._clock.now().timestamp()
        within_s = max(self._within_s, min(self._within_s + len(nodes) * _A_NODE_S, _MOST_S))
        looked, told, traced = await asyncio.gather(
            self._looked(job, within_s),
            self._told(job, within_s),
            self._traced(job, len(nodes), interval_s, now),
        )
        (sights, unlooked), (facts, untold) = looked, told
        earlier = self._earlier.of(job)
        self._earlier.keep(job, facts)
        return Case(
            job=job,
            now=self._clock.now().timestamp(),
            interval_s=interval_s,
            nodes=nodes,
            groups=_groups(nodes, topology),
            sights=sights,
            facts=facts,
            earlier=earlier,
            silences={each.node: each for each in (*untold, *unlooked)},
            traces=traced[0],
            no_traces=traced[1],
            targets=self._targets,
        )

    async def _looked(
        self, job: JobAttempt, within_s: float
    ) -> tuple[dict[str, NodeSight], _Silences]:
        if self._senses.looks is None:
            return {}, ()
        try:
            async with asyncio.timeout(within_s + _GRACE_S):
                found = await self._senses.looks.look(job, within_s=within_s)
        except TimeoutError:
            return {}, _all_silent(job)
        return {each.node: each for each in found[0]}, found[1]

    async def _told(
        self, job: JobAttempt, within_s: float
    ) -> tuple[dict[str, NodeFacts], _Silences]:
        if self._senses.facts is None:
            return {}, tuple(NodeSilence(node, NO_FACTS) for node in nodes_of(job))
        try:
            async with asyncio.timeout(within_s + _GRACE_S):
                found = await self._senses.facts.facts(job, within_s=within_s)
        except TimeoutError:
            return {}, _all_silent(job)
        return {each.node: each for each in found[0]}, found[1]

    async def _traced(self, job: JobAttempt, nodes: int, interval_s: float, now: float) -> _Traces:
        store = self._senses.store
        if store is None:
            return {}, NO_STORE
        try:
            async with asyncio.timeout(_STORE_S + _GRACE_S):
                series = await store.query_range(
                    traces.question(job, nodes, interval_s),
                    start=now - TRACE_S,
                    end=now,
                    step_s=traces.step_s(interval_s),
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
        return traces.read(series), ""


def nodes_of(job: JobAttempt) -> tuple[str, ...]:
    """The names of its nodes, in order."""
    try:
        return tuple(NodeSet.parse(job.attempt.nodes))
    except ValueError:
        return ()


def _all_silent(job: JobAttempt) -> _Silences:
    return tuple(NodeSilence(node, "it was not heard in time") for node in nodes_of(job))


def _groups(nodes: tuple[str, ...], topology: Topology) -> dict[str, str]:
    leaves = {
        node: switch.name
        for switch in topology.switches
        if switch.level == 0
        for node in switch.nodes
    }
    return {node: leaves[node] for node in nodes if node in leaves}
