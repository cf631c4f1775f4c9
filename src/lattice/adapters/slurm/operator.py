"""`SlurmNodeOperator`: the port `NodeOperator` by `scontrol update`, as the server's own user.

slurmrestd of older versions can't change nodes. slurmctld lets root and SlurmUser do it, and users
with the AdminLevel Administrator in slurmdbd (Operator is not enough). If it refuses, the error
shows the command that the site has to run.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping

from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.adapters.slurm.schema.build import node_state
from lattice.base.errors import ConfigurationError
from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import Admitted, AllExcept

# The state comes before the reason, which may contain any text: only the first counts.
_LINE = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)")
_PARTITION = re.compile(r"PartitionName=(\S+) (.*)")
_ACCOUNTS = re.compile(r"(?:^|\s)(Allow|Deny)Accounts=(\S+)")
_REFUSED = re.compile(
    r"invalid user id|permission denied|not authorized|^sudo: ", re.IGNORECASE | re.MULTILINE
)


class SlurmNodeOperator:
    """Operates one Slurm cluster."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands

    async def states(self, nodes: NodeSet) -> Mapping[str, NodeState]:
        """The current states from slurmctld, not the last poll."""
        return parse_states(await self._commands.nodes_shown(nodes.fold()))

    async def admitted(self) -> Mapping[str, Admitted]:
        """By `AllowAccounts`, or by `DenyAccounts` where the first names no accounts."""
        return parse_admitted(await self._commands.partitions_shown())

    async def drain(self, nodes: NodeSet, reason: str) -> None:
        """Slurm's own drain."""
        await self._update(nodes, "drain", reason)

    async def disable(self, nodes: NodeSet, reason: str) -> None:
        """Slurm's `down`: it ends the jobs there.

        The node is drained as well. With `ReturnToService=2` a node that is only down is back in
        service with its next registration, which may be a second later.
        """
        await self._update(nodes, "drain", reason)
        await self._update(nodes, "down", reason)

    async def resume(self, nodes: NodeSet) -> None:
        """Slurm's `resume`: reverts a drain or a `down`."""
        await self._update(nodes, "resume")

    async def _update(self, nodes: NodeSet, state: str, reason: str = "") -> None:
        try:
            await self._commands.update_nodes(nodes.fold(), state, reason)
        except CommandFailed as failure:
            if _REFUSED.search(failure.output):
                raise _not_allowed(failure.output) from None
            raise


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


def _not_allowed(output: str) -> ConfigurationError:
    user = _own_user()
    return ConfigurationError(
        f"Slurm does not let this server's user {user} change nodes: {output}",
        hint=f"An administrator of Slurm has to run once: sacctmgr -i modify user {user} set "
        "AdminLevel=Administrator; or set slurm.operate_with to a command that may.",
    )


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
