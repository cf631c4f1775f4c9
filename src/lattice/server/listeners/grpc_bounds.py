"""Bounds of the gRPC listeners: the options of grpc's own core.

The core accepts at most 32 new streams per read, against floods of streams that are opened and
reset. It refuses streams of a connection beyond `max_concurrent_streams`. It limits the connections
of a port, not those of an address.
"""

from __future__ import annotations

from lattice.features.link.model import ANSWER_OPTIONS

_HANDSHAKE_MS = 10_000
LARGEST_MESSAGE_BYTES = 4 * 1024 * 1024 + 256 * 1024
"""The largest body of REST, with the overhead of protobuf."""
LARGEST_METADATA_BYTES = 32 * 1024
MOST_STREAMS = 128
"""Of people and services, on one connection."""
MOST_AGENT_STREAMS = 1280
"""A node has at most 1 000 sessions, and its other calls."""
MOST_CONNECTIONS = 4096
"""Services are few, and people use REST."""
MOST_AGENT_CONNECTIONS = 65_536
"""A node has two to four: its link, a standby connection, and those of transfers and streams."""
AGENT_IDLE_MS = 3_600_000
"""A connection without any call is closed then. Agents call on a standby connection more often."""

_AGENT_TLS_BYTES = 4096

Options = tuple[tuple[str, int], ...]

_COMMON: Options = (
    # Otherwise a second server could take the same port, and half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_metadata_size", LARGEST_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", LARGEST_METADATA_BYTES),
)

AGENT_OPTIONS: Options = (
    *_COMMON,
    ("grpc.max_concurrent_streams", MOST_AGENT_STREAMS),
    ("grpc.max_allowed_incoming_connections", MOST_AGENT_CONNECTIONS),
    ("grpc.max_connection_idle_ms", AGENT_IDLE_MS),
    # The buffers of TLS for what is sent: an agent gets little.
    ("grpc.tsi.max_frame_size", _AGENT_TLS_BYTES),
    *ANSWER_OPTIONS,
)
"""For the agents' listener; `STREAM_OPTIONS` has the size of its messages."""


def service_options(most_connections: int = MOST_CONNECTIONS) -> Options:
    """For the listener for people and services."""
    return (
        *_COMMON,
        ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        ("grpc.max_allowed_incoming_connections", most_connections),
    )
