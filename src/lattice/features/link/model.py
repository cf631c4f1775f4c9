"""The answer of the feature and the record of a replica: pure data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

REPLICAS = "replicas/"
PROBE_EVERY_S = 5.0
SILENCE_S = 15.0
"""A connection whose other end does not answer is given up then."""
REPLACED = "the agent has dialled again"
"""Why a replica ends a link when the same agent opens another."""
MOST_PINGS = 100


@dataclass(frozen=True, slots=True)
class PingTimes:
    """How often an agent pings on its link, and how long either side may be silent."""

    every_s: float
    silence_s: float


PINGED = PingTimes(PROBE_EVERY_S, SILENCE_S)
"""Of an older agent, whose pings are all that shows a loss."""
PROBED = PingTimes(30.0, 65.0)
"""Where gRPC itself probes the connection, a ping shows that the processes still serve it."""


def _probes(every_s: float) -> tuple[tuple[str, int], ...]:
    """Options of gRPC: probe when nothing came for so long, and give up after `SILENCE_S`."""
    wait_ms = int((SILENCE_S - every_s) * 1000)
    return (
        ("grpc.keepalive_time_ms", int(every_s * 1000)),
        # This one bounds the kernel's patience with what was sent, the next one that with a probe.
        ("grpc.keepalive_timeout_ms", wait_ms),
        ("grpc.http2.ping_timeout_ms", wait_ms),
        # Otherwise gRPC stops probing after two.
        ("grpc.http2.max_pings_without_data", 0),
    )


PROBE_OPTIONS = _probes(PROBE_EVERY_S)
"""Of the agent's end."""
ANSWER_OPTIONS = (
    # The agent probes more often, so a replica only probes an agent that is silent.
    *_probes(PROBE_EVERY_S + 2.0),
    ("grpc.http2.min_ping_interval_without_data_ms", int(PROBE_EVERY_S * 1000 / 2)),
)
"""Of the replica's end."""


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
