"""The operation of the feature and the function that makes its call. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from lattice.base.call import Call
from lattice.base.operation import FieldRule, Operation
from lattice.features.link.model import MOST_PINGS, NodeReach


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest:
    """Which node, and how many round trips."""

    name: Annotated[str, FieldRule(longest=63)]
    count: Annotated[int, FieldRule(least=1, most=MOST_PINGS)] = 10


PING_NODE = Operation(
    rpc="lattice.v1.LinkProbe/PingNode",
    method="GET",
    path="/nodes/{name}/ping",
    request=PingRequest,
    answer=NodeReach,
    timeout_s=20.0,
)


def ping_node(name: str, count: int = 10) -> Call[NodeReach]:
    """Round trips to a node's agent, measured by the server that gets the call."""
    return PING_NODE.call(PingRequest(name=name, count=count))
