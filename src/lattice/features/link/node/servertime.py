"""The time of the replicas, on a node where the clock may be wrong.

Lines are merged by it, grants are checked by it, and jobs are identified by it. The kernel has a
job's start in the node's time, and Slurm has it in the servers' time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from lattice.base.clock import Clock

_MAX_ENTRIES = 10_000


class ServerTime:
    """The node's clock, corrected by the link's last measurement."""

    def __init__(self, clock: Clock, ahead_s: Callable[[], float | None]) -> None:
        """`ahead_s`: how far the node's clock is ahead; None before a measurement."""
        self._clock = clock
        self._measured_s = ahead_s
        self._ahead_s: float | None = None
        self._to_server: dict[float, float] = {}
        self._to_node: dict[float, float] = {}

    @property
    def ahead_s(self) -> float | None:
        """How far the node's clock is ahead; None before the first measurement."""
        measured_s = self._measured_s()
        if measured_s is not None:
            self._ahead_s = measured_s
        return self._ahead_s

    def now(self) -> datetime:
        return self._clock.now() - timedelta(seconds=self.ahead_s or 0.0)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def to_server_time(self, node_s: float) -> float:
        """A time of the node as servers have it, always the same for the same input.

        It is part of a job's identity, so it must not change when the clock is set.
        """
        known_s = self._to_server.get(node_s)
        if known_s is not None:
            return known_s
        ahead_s = self.ahead_s
        if ahead_s is None:
            return node_s
        return self._pair(node_s, node_s - ahead_s)[1]

    def to_node_time(self, server_s: float) -> float:
        """A time from a server, in the node's time; `to_server_time` is the inverse."""
        known_s = self._to_node.get(server_s)
        if known_s is not None:
            return known_s
        ahead_s = self.ahead_s
        if ahead_s is None:
            return server_s
        return self._pair(server_s + ahead_s, server_s)[0]

    def _pair(self, node_s: float, server_s: float) -> tuple[float, float]:
        if len(self._to_server) >= _MAX_ENTRIES:
            self._to_server.clear()
            self._to_node.clear()
        self._to_server[node_s], self._to_node[server_s] = server_s, node_s
        return node_s, server_s
