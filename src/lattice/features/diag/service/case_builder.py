"""Gathers all data for the rules, in parallel and with one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.domain.attempts import JobAttempt
from lattice.domain.metricstore import BadQuery, MetricStore, Point, StoreSilent
from lattice.domain.node import Topology
from lattice.domain.node_facts import FactSource, NodeAnswer
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.domain.nodeset import NodeSet
from lattice.domain.promql import BadSelector
from lattice.domain.telemetry import ModeOf
from lattice.features.diag.model import TRACE_S, Case, Targets, TraceKey
from lattice.features.diag.service import traces
from lattice.features.diag.service.previous_facts import PreviousFacts

WITHIN_S = 3.0
_FEW = 50
_A_NODE_S = 0.01
_MOST_S = 7.0
"""The most extra time for many nodes, which take a server longer to ask."""
_STORE_S = 2.0
_GRACE_S = 0.5
"""Extra time after the timeout before a source counts as down."""
NO_STORE = "no metric store is configured, so there is no past"
NO_FACTS = "this server can't ask nodes for facts"
NOT_IN_TIME = "it was not heard in time"
_Traces: TypeAlias = tuple[Mapping[TraceKey, tuple[Point, ...]], str]
_Checks: TypeAlias = tuple[NodeAnswer, ...]
_Silences: TypeAlias = tuple[NodeUnreachable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSources:
    """The data sources; None if there is none."""

    facts: FactSource | None
    store: MetricStore | None
    modes: ModeOf


class CaseBuilder:
    """Builds cases. Never raises for a source that is down: that is part of the case."""

    def __init__(
        self, senses: DataSources, clock: Clock, targets: Targets, *, within_s: float = WITHIN_S
    ) -> None:
        self._senses = senses
        self._clock = clock
        self._targets = targets
        self._within_s = within_s
        self._earlier = PreviousFacts(clock)

    async def case(self, job: JobAttempt, topology: Topology) -> Case:
        """Build the case of a running attempt."""
        nodes = nodes_of(job)
        interval_s = self._senses.modes(job.allocation.ref).interval_s
        now = self._clock.now().timestamp()
        within_s = self._within_s + min(max(0, len(nodes) - _FEW) * _A_NODE_S, _MOST_S)
        (checks, silences), traced = await asyncio.gather(
            self._told(job, within_s),
            self._traced(job, len(nodes), interval_s, now),
        )
        facts = {each.node: each.facts for each in checks if each.facts is not None}
        earlier = self._earlier.of(job)
        self._earlier.keep(job, facts)
        return Case(
            job=job,
            now=self._clock.now().timestamp(),
            interval_s=interval_s,
            nodes=nodes,
            groups=_groups(nodes, topology),
            sights={each.node: each.sight for each in checks if each.sight is not None},
            facts=facts,
            earlier=earlier,
            silences={each.node: each for each in (*silences, *_lacking(checks))},
            traces=traced[0],
            no_traces=traced[1],
            targets=self._targets,
        )

    async def _told(self, job: JobAttempt, within_s: float) -> tuple[_Checks, _Silences]:
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
                    str(traces.question(job, nodes, interval_s, now)),
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
    """Return the names of its nodes, in order."""
    try:
        return tuple(NodeSet.parse(job.attempt.nodes))
    except ValueError:
        return ()


def _lacking(checks: _Checks) -> _Silences:
    """Return nodes that sent facts or a snapshot, but not both."""
    return tuple(NodeUnreachable(each.node, each.lacking) for each in checks if each.lacking)


def _groups(nodes: tuple[str, ...], topology: Topology) -> dict[str, str]:
    leaves = {
        node: switch.name
        for switch in topology.switches
        if switch.level == 0
        for node in switch.nodes
    }
    return {node: leaves[node] for node in nodes if node in leaves}
