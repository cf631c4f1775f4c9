"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

from urllib.parse import quote

from lattice.base.call import Call, params
from lattice.features.nodes.model import NodeCard, NodeList


def list_nodes(*, states: tuple[str, ...] = (), partition: str = "") -> Call[NodeList]:
    """All nodes, or those of a state or a partition."""
    return Call("GET", "/v1/nodes", NodeList, params(state=states, partition=partition))


def get_node(name: str) -> Call[NodeCard]:
    """One node."""
    return Call("GET", f"/v1/nodes/{quote(name, safe='')}", NodeCard)
