"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

from urllib.parse import quote

from lattice.base.call import Call, params
from lattice.features.link.model import NodeReach


def ping_node(name: str, count: int = 10) -> Call[NodeReach]:
    """Round trips to a node's agent, measured by the server that is asked."""
    path = f"/v1/nodes/{quote(name, safe='')}/ping"
    return Call("GET", path, NodeReach, params(count=count), timeout_s=20.0)
