"""Whoever operates the nodes of the scheduler in memory. Passes the port's contract suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.node import Node, NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import Admitted
from tests.fakes.in_memory_scheduler import InMemoryScheduler


class InMemoryNodeOperator:
    """`busy` are nodes with work on them; `refuses` as a gate that may not."""

    def __init__(self, scheduler: InMemoryScheduler) -> None:
        self._scheduler = scheduler
        self.busy: set[str] = set()
        self.refuses = False
        self.answers_after = 0
        """For so many looks a node that was put back does not respond."""
        self._silent: dict[str, int] = {}
        self.acts: list[tuple[str, str, str]] = []
        self.by: list[str] = []
        self.partitions: dict[str, Admitted] = {}

    async def states(self, nodes: NodeSet) -> Mapping[str, NodeState]:
        self._answer()
        return {each.name: self._seen(each) for each in self._scheduler.nodes if each.name in nodes}

    async def admitted(self) -> Mapping[str, Admitted]:
        self._answer()
        return self.partitions

    def _seen(self, node: Node) -> NodeState:
        left = self._silent.get(node.name, 0)
        self._silent[node.name] = max(0, left - 1)
        return NodeState.UNKNOWN if left else node.state

    async def drain(self, nodes: NodeSet, reason: str, *, by: str) -> None:
        self.by.append(by)
        self._set("drain", nodes, reason, NodeState.DRAINED, NodeState.DRAINING)

    async def disable(self, nodes: NodeSet, reason: str, *, by: str) -> None:
        self.by.append(by)
        self._set("disable", nodes, reason, NodeState.DOWN, NodeState.DOWN)

    async def resume(self, nodes: NodeSet, *, by: str) -> None:
        self.by.append(by)
        self._set("resume", nodes, "", NodeState.READY, NodeState.READY)
        self._silent = dict.fromkeys(nodes, self.answers_after)

    def work_ends(self, name: str) -> None:
        self.busy.discard(name)
        self._scheduler.nodes = [
            replace(each, state=NodeState.DRAINED)
            if each.name == name and each.state is NodeState.DRAINING
            else each
            for each in self._scheduler.nodes
        ]

    def _set(self, act: str, nodes: NodeSet, reason: str, idle: NodeState, busy: NodeState) -> None:
        self._answer()
        if self.refuses:
            raise ConfigurationError("This site does not let Lattice change nodes in Slurm.")
        self.acts.append((act, nodes.fold(), reason))
        self._scheduler.nodes = [
            replace(each, state=busy if each.name in self.busy else idle, reason=reason)
            if each.name in nodes
            else each
            for each in self._scheduler.nodes
        ]

    def _answer(self) -> None:
        if self._scheduler.down:
            raise Unavailable("slurmctld does not answer.")
