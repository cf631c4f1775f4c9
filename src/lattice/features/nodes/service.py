"""The use case: the nodes of the cluster, and on one of them the caller's own work."""

from __future__ import annotations

from dataclasses import replace

from lattice.access.actor import Actor
from lattice.access.permission import Permission
from lattice.access.policy import scope_of
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import Reading, Scheduler
from lattice.domain.source import Source
from lattice.features.nodes.model import NodeCard, NodeList


class NodeService:
    """Answers from the live reading alone."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def nodes(self, states: frozenset[NodeState], partition: str) -> NodeList:
        """All of them, or those of some states or a partition."""
        reading = self._scheduler.live()
        nodes = (
            each
            for each in reading.cluster.nodes
            if (not states or each.state in states)
            and (not partition or partition in each.partitions)
        )
        return NodeList(
            nodes=tuple(sorted(nodes, key=lambda each: each.name)), sources=(_source(reading),)
        )

    async def node(self, actor: Actor, name: str) -> NodeCard:
        """One of them."""
        reading = self._scheduler.live()
        node = next((each for each in reading.cluster.nodes if each.name == name), None)
        if node is None:
            raise _absent(reading)
        return NodeCard(
            node=node,
            allocations=_visible_on(name, actor, reading),
            sources=(_source(reading),),
        )


def _source(reading: Reading) -> Source:
    # Nodes are read less often than jobs, and their age is their own.
    cluster, source = reading.cluster, reading.source
    behind_s = (cluster.read_at - cluster.nodes_read_at).total_seconds()
    age_s = None if source.age_s is None else max(0.0, source.age_s + behind_s)
    return replace(source, as_of=cluster.nodes_read_at, age_s=age_s)


def _visible_on(name: str, actor: Actor, reading: Reading) -> tuple[str, ...]:
    scope = scope_of(actor, Permission.VIEW_ALLOCATIONS, reading.cluster.accounts)
    return tuple(
        each.id
        for each in reading.cluster.visible(scope)
        if each.nodes and not each.state.finished and name in NodeSet.parse(each.nodes)
    )


def _absent(reading: Reading) -> NotFound | Unavailable:
    if reading.source.ok:
        return NotFound("No node of that name.", hint="`lattice nodes` lists all of them.")
    return Unavailable(
        "Whether that node exists can't be told now: slurmctld does not answer.",
        hint="Try again in a minute; `lattice nodes` shows what is known.",
    )
