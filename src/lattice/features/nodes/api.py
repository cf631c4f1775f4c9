"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

import json
from urllib.parse import quote

from lattice.base.call import Call, params
from lattice.domain.operation import NodeAct
from lattice.features.nodes.model import NodeActs, NodeCard, NodeList

_ACT_TIMEOUT_S = 30.0


def list_nodes(*, states: tuple[str, ...] = (), partition: str = "") -> Call[NodeList]:
    """All nodes, or those of a state or a partition."""
    return Call("GET", "/v1/nodes", NodeList, params(state=states, partition=partition))


def get_node(name: str) -> Call[NodeCard]:
    """One node."""
    return Call("GET", f"/v1/nodes/{quote(name, safe='')}", NodeCard)


def operate_node(act: NodeAct, nodes: str, reason: str = "") -> Call[NodeActs]:
    """Drain, undrain, disable or enable nodes, named as Slurm does: `n[1-3]`.

    Doing it twice is the same as doing it once.
    """
    return Call(
        "POST",
        f"/v1/nodes/{quote(nodes, safe='')}/{act.value}",
        NodeActs,
        body=json.dumps({"reason": reason}).encode(),
        timeout_s=_ACT_TIMEOUT_S,
        idempotent=True,
    )
