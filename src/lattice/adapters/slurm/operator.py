"""`SlurmNodeOperator`: the port `NodeOperator`, by `scontrol`. Changes go to the gate.

slurmrestd of older versions can't change nodes, and slurmctld lets few accounts do it. The server's
own account has no such right: the gate runs `scontrol update` as SlurmUser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.schema.build import node_state
from lattice.domain.administration import Administration, NodeChange
from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import Admitted, AllExcept

# The state comes before the reason, which may contain any text: only the first counts.
_LINE = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)")
_PARTITION = re.compile(r"PartitionName=(\S+) (.*)")
_ACCOUNTS = re.compile(r"(?:^|\s)(Allow|Deny)Accounts=(\S+)")


class SlurmNodeOperator:
    """Operates one Slurm cluster."""

    def __init__(self, commands: SlurmCommands, administration: Administration) -> None:
        self._commands = commands
        self._administration = administration

    async def states(self, nodes: NodeSet) -> Mapping[str, NodeState]:
        """The current states from slurmctld, not the last poll."""
        return parse_states(await self._commands.nodes_shown(nodes.fold()))

    async def admitted(self) -> Mapping[str, Admitted]:
        """By `AllowAccounts`, or by `DenyAccounts` where the first names no accounts."""
        return parse_admitted(await self._commands.partitions_shown())

    async def drain(self, nodes: NodeSet, reason: str, *, by: str) -> None:
        """Slurm's own drain."""
        await self._administration.change_nodes(NodeChange.DRAIN, nodes, reason, by=by)

    async def disable(self, nodes: NodeSet, reason: str, *, by: str) -> None:
        """Slurm's `down`: it ends the jobs there. The gate drains the node as well."""
        await self._administration.change_nodes(NodeChange.DISABLE, nodes, reason, by=by)

    async def resume(self, nodes: NodeSet, *, by: str) -> None:
        """Slurm's `resume`: reverts a drain or a `down`."""
        await self._administration.change_nodes(NodeChange.RESUME, nodes, "", by=by)


def parse_states(text: str) -> dict[str, NodeState]:
    """The states in `scontrol -o show node`; skips malformed lines."""
    states: dict[str, NodeState] = {}
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match is not None:
            states.setdefault(match[1], _state(match[2]))
    return states


def parse_admitted(text: str) -> dict[str, Admitted]:
    """The accounts in `scontrol -o show partition`; skips malformed lines."""
    found: dict[str, Admitted] = {}
    for line in text.split("\n"):
        match = _PARTITION.match(line)
        if match is None:
            continue
        # The first of each counts: what follows may be text of a site.
        lists = {kind: _names(text) for kind, text in reversed(_ACCOUNTS.findall(match[2]))}
        if allowed := lists.get("Allow"):
            found[match[1]] = allowed
        else:
            denied = lists.get("Deny")
            found[match[1]] = AllExcept(denied) if denied else None
    return found


def _names(text: str) -> frozenset[str]:
    """The accounts of a list; none for Slurm's words for "all" and "not set"."""
    if text.upper() in {"ALL", "(NULL)"}:
        return frozenset()
    return frozenset(filter(None, text.split(",")))


def _state(text: str) -> NodeState:
    states: list[str] = []
    for state in text.lower().split("+"):
        # `idle*` does not respond; the other marks are for power and reservations.
        plain = state.rstrip("*~#!%$@^-")
        states += [plain, "not_responding"] if "*" in state[len(plain) :] else [plain]
    return node_state(tuple(states))
