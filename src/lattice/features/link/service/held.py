"""One agent's link, as its replica has it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from lattice.base.errors import Unavailable
from lattice.domain.node import NOT_LOOKED, NodeHealth
from lattice.wire.v1.link_pb2 import Leave, LinkDown

_MOST_WAITING = 64


@dataclass(eq=False, slots=True)
class HeldLink:
    """One agent's link."""

    node: str
    boot_id: str
    instance: str
    agent_version: str
    since: float
    heard: float
    """Monotonic."""
    epoch: int = 0
    published: bool = False
    ahead_us: int | None = None
    round_trip_us: int | None = None
    health: NodeHealth = NOT_LOOKED
    health_at: float | None = None
    """The last change of the health; monotonic."""
    health_written: NodeHealth = NOT_LOOKED
    outbox: asyncio.Queue[LinkDown | None] = field(
        default_factory=lambda: asyncio.Queue(_MOST_WAITING)
    )

    @property
    def waits(self) -> bool:
        """True if the route or the health is not written to the store yet."""
        return not self.published or self.health != self.health_written

    def send(self, message: LinkDown) -> None:
        """Queue a message. Raises `Unavailable` if the agent does not read its messages."""
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            raise Unavailable(
                f"Node {self.node} takes no more messages.", hint="Try again in a minute."
            ) from None

    def end(self, reason: str) -> None:
        """Tell the agent to leave, and end the link after that."""
        while self.outbox.full():
            self.outbox.get_nowait()
        self.outbox.put_nowait(LinkDown(leave=Leave(reason=reason)))
        if not self.outbox.full():
            self.outbox.put_nowait(None)
