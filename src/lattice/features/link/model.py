"""What the feature answers, and the record of a replica: pure data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

REPLICAS = "replicas/"
PING_EVERY_S = 5.0
SILENCE_S = 15.0
MOST_PINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A server that is up: its record is under its lease and goes with it."""

    id: str
    address: str
    """Where agents and other replicas dial it."""
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReach:
    """The way to a node, measured by one replica."""

    node: str
    linked_to: str
    measured_by: str
    round_trips_ms: tuple[float, ...]
    opened_ms: float


class BadReplica(Exception):
    """A value that is no record of a replica."""


def written(replica: Replica) -> bytes:
    """The value of `replicas/ID`."""
    return msgspec.json.encode(replica)


def read_replica(value: bytes) -> Replica:
    """The same, read; raises `BadReplica`. Fields of later versions are passed over."""
    try:
        return msgspec.json.decode(value, type=Replica)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReplica(str(error)) from None
