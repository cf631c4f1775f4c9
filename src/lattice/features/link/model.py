"""The answer of the feature and the record of a replica: pure data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

REPLICAS = "replicas/"
PING_EVERY_S = 5.0
SILENCE_S = 15.0
REPLACED = "the agent has dialled again"
"""Why a replica ends a link when the same agent opens another."""
MOST_PINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A server that is up. Its record is under its lease."""

    id: str
    address: str
    """Where agents and other replicas dial it."""
    since: float
    version: str = ""
    """Of the server; empty for one that is too old to record it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReach:
    """Round trips to a node, measured by one replica."""

    node: str
    linked_to: str
    measured_by: str
    round_trips_ms: tuple[float, ...]
    opened_ms: float


class BadReplica(Exception):
    """The value of a replica's key can't be parsed."""


def written(replica: Replica) -> bytes:
    """The value of `replicas/ID`."""
    return msgspec.json.encode(replica)


def read_replica(value: bytes) -> Replica:
    """Parse that value; raises `BadReplica`. Unknown fields are ignored."""
    try:
        return msgspec.json.decode(value, type=Replica)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReplica(str(error)) from None
