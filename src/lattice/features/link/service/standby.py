"""The connections that nodes keep ready at this replica, counted by node.

gRPC does not show its idle connections, so an agent calls `Standby` on its own now and then. What
does not call is closed by the listener after an hour. A connection gives a node nothing by itself:
each call on it is admitted like the first.
"""

from __future__ import annotations

from lattice.base.clock import Clock
from lattice.base.errors import RateLimited

MOST_STANDBY = 2
"""Of one node: the connection of an agent, and that of the agent before a restart."""
_FORGET_S = 300.0
"""An agent calls every 140 s or sooner."""


class StandbyRegistry:
    """Counts connections that called lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._called_at: dict[str, dict[str, float]] = {}
        """By node and by the connection's other end; monotonic."""

    @property
    def open(self) -> int:
        """The number of connections."""
        for node in list(self._called_at):
            self._forget_old(node)
        return sum(map(len, self._called_at.values()))

    def note(self, node: str, connection: str) -> None:
        """Count a connection of a node. Raises `RateLimited` if it has too many."""
        self._forget_old(node)
        known = self._called_at.get(node, {})
        if connection not in known and len(known) >= MOST_STANDBY:
            raise RateLimited(
                f"{node} has {len(known)} connections ready here.", hint="Close this one."
            )
        self._called_at.setdefault(node, known)[connection] = self._clock.monotonic()

    def has(self, node: str, connection: str) -> bool:
        """True if this connection of the node is one of them."""
        return connection in self._called_at.get(node, {})

    def forget(self, node: str) -> None:
        """The node is linked here, or is not trusted any more."""
        self._called_at.pop(node, None)

    def _forget_old(self, node: str) -> None:
        since_s = self._clock.monotonic() - _FORGET_S
        known = self._called_at.get(node, {})
        for connection, called_s in list(known.items()):
            if called_s < since_s:
                del known[connection]
        if not known:
            self._called_at.pop(node, None)
