"""The port for taking nodes out of service and putting them back. Pure.

The scheduler itself drains: running jobs go on, nothing new starts. Lattice keeps no state of its
own besides it, so that `sinfo` and `lattice nodes` can't disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from lattice.domain.node import NodeState
from lattice.domain.nodeset import NodeSet


@dataclass(frozen=True, slots=True)
class AllExcept:
    """All accounts, also future ones, except these."""

    denied: frozenset[str]


Admitted: TypeAlias = frozenset[str] | AllExcept | None
"""The accounts that a partition admits; None: all."""


class NodeAct(StrEnum):
    DRAIN = "drain"
    UNDRAIN = "undrain"
    DISABLE = "disable"
    ENABLE = "enable"


class NodeOperator(Protocol):
    """Acts on nodes, for all of the set or for none. `by` is the verified caller, for the record.

    Each method raises `Unavailable` while the scheduler does not answer, and `ConfigurationError`
    if the site does not permit it.
    """

    async def states(self, nodes: NodeSet) -> Mapping[str, NodeState]:
        """Their states in the scheduler now; unknown nodes are left out."""

    async def admitted(self) -> Mapping[str, Admitted]:
        """The accounts that each partition admits now."""

    async def drain(self, nodes: NodeSet, reason: str, *, by: str) -> None:
        """No new work; running jobs go on."""

    async def disable(self, nodes: NodeSet, reason: str, *, by: str) -> None:
        """Take out of service at once, even with running jobs."""

    async def resume(self, nodes: NodeSet, *, by: str) -> None:
        """Put back into service."""
