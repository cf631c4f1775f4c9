"""A gate's administration in memory. Passes the port's contract suite.

It has a few nodes and accounts, and the bounds of the real one: the questions' own.
"""

from __future__ import annotations

from collections.abc import Collection

from lattice.base.errors import ConfigurationError, Unavailable, UsageError
from lattice.domain.administration import (
    AdministrationQuestion,
    GateRights,
    NodeChange,
    NodeQuestion,
    TenantAct,
    TenantQuestion,
    VerbGroup,
)
from lattice.domain.nodeset import NodeSet
from lattice.domain.privileged import verb_of
from lattice.domain.tenants import AccountLimits, LimitChange

_OUT = {
    NodeChange.DRAIN: "drained",
    NodeChange.DISABLE: "down",
    NodeChange.RESUME: "idle",
}


class InMemoryAdministration:
    """`away`: nothing listens. `allowed`: what the site lets its gate change."""

    def __init__(self, nodes: Collection[str] = ("n1", "n2", "n3")) -> None:
        self.away = False
        self.allowed = frozenset(VerbGroup)
        self.fault = ""
        self.states = dict.fromkeys(nodes, "idle")
        self.limits: dict[str, AccountLimits] = {}
        self.by: list[str] = []

    async def change_nodes(
        self, change: NodeChange, nodes: NodeSet, reason: str, *, by: str
    ) -> None:
        self._take(
            NodeQuestion(cluster="lab", change=change, nodes=tuple(nodes), reason=reason), by
        )
        if missing := [each for each in nodes if each not in self.states]:
            raise ConfigurationError(f"slurmctld has no node {missing[0]}.")
        self.states |= dict.fromkeys(nodes, _OUT[change])

    async def change_tenant(
        self, act: TenantAct, name: str, change: LimitChange, *, by: str
    ) -> None:
        self._take(
            TenantQuestion(
                cluster="lab",
                act=act,
                name=name,
                max_nodes=change.max_nodes,
                max_gpus=change.max_gpus,
                max_jobs=change.max_jobs,
            ),
            by,
        )
        self.limits[name] = self.limits.get(name, AccountLimits()).changed(change)

    async def rights(self) -> GateRights:
        self._answer()
        groups = tuple(each for each in VerbGroup if each in self.allowed)
        return GateRights(groups=groups, user="" if self.fault else "slurm", fault=self.fault)

    def _take(self, question: AdministrationQuestion, by: str) -> None:
        if fault := question.fault():
            raise UsageError(f"The gate does not take this: {fault}.")
        self._answer()
        group = verb_of(question).group
        if group not in self.allowed:
            raise ConfigurationError(f"This site does not let Lattice change {group} in Slurm.")
        self.by.append(by)

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("The gate does not answer.")
