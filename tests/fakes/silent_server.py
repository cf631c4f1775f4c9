"""Servers that do not answer: a host that drops packets, and a process that is frozen."""

from __future__ import annotations

import atexit
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from tests.eventually import eventually


@contextmanager
def unanswering(scheme: str = "http") -> Iterator[str]:
    """An address where no connection is ever made: the queue is full, so the kernel drops them."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        # The kernel may queue the connection later than it reports it to the caller. Until then
        # it accepts others.
        eventually(lambda: _is_full(listening), pause_s=0.001)
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"


def _is_full(listening: socket.socket) -> bool:
    # In `struct tcp_info` of a listening socket: the length of its queue, and the most it takes.
    facts = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    queued, most = struct.unpack_from("II", facts, 24)
    return bool(queued > most)


@contextmanager
def frozen(scheme: str = "https") -> Iterator[str]:
    """Connections are made by the kernel, and nobody ever reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"


def refusing() -> str:
    """An address where nobody listens."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    # Held to the end: a port that is given back may be another server's a moment later.
    atexit.register(bound.close)
    return f"http://127.0.0.1:{bound.getsockname()[1]}"
