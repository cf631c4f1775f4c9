"""Servers that do not answer: a host that drops packets, and a process that is frozen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_FULL = 8


@contextmanager
def unanswering(scheme: str = "http") -> Iterator[str]:
    """An address where no connection is ever made: the queue is full, so the kernel drops them."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(_FULL):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(listening.getsockname())
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def frozen(scheme: str = "https") -> Iterator[str]:
    """Connections are made by the kernel, and nobody ever reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"


def refusing() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
