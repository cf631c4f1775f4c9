"""The port to whoever takes nodes out of service and puts them back. Pure.

Draining is the scheduler's own: what runs goes on, nothing new starts. Lattice keeps no state of
its own beside it, so that `sinfo` and `lattice nodes` can't disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol, TypeAlias

from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet

Admitted: TypeAlias = frozenset[str] | None
"""The accounts that a partition admits; None: every one."""


class NodeAct(StrEnum):
    """What can be done to a node."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    DISABLE = "disable"
    ENABLE = "enable"


class NodeOperator(Protocol):
    """Acts on nodes, for all of the set or for none.

    Each raises `Unavailable` while the scheduler does not answer, and `ConfigurationError` if it
    does not let this server do it.
    """

    async def states(self, nodes: NodeSet) -> Mapping[str, NodeState]:
        """How the scheduler has them at this moment; one it does not know is left out."""

    async def admitted(self) -> Mapping[str, Admitted]:
        """Which accounts each partition admits, at this moment."""

    async def drain(self, nodes: NodeSet, reason: str) -> None:
        """No new work; what runs goes on."""

    async def disable(self, nodes: NodeSet, reason: str) -> None:
        """Out of service at once, work or not."""

    async def resume(self, nodes: NodeSet) -> None:
        """Back into service."""
