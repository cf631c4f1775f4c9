"""What the feature answers: pure data."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.node import Node
from lattice.domain.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """Nodes by name, with the word on where they come from."""

    nodes: tuple[Node, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCard:
    """One node, and the ids of the caller's own allocations on it."""

    node: Node
    sources: tuple[Source, ...]
    allocations: tuple[str, ...] = ()
