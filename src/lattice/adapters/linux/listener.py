"""One listener to a node's jobs: a bounded queue that loses nothing that still matters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from lattice.domain.nodejobs import JobEnded, JobEvent, JobIdentity, NodeJob, Picture, compare

_MOST_WAITING = 4096


class Listener:
    """Holds events until they are taken.

    When there are too many, the difference is told instead: what came and went while nobody
    listened is lost, what is there now is not.
    """

    def __init__(self, picture: Picture, most: int = _MOST_WAITING) -> None:
        self._told: dict[JobIdentity, NodeJob] = {}
        self._waiting: list[JobEvent] = list(compare({}, picture))
        self._most = most
        self._lost = False
        self._some = asyncio.Event()
        if self._waiting:
            self._some.set()

    def tell(self, events: Iterable[JobEvent]) -> bool:
        """Add these; True if there were too many and events are lost."""
        self._waiting += events
        lost = len(self._waiting) > self._most
        if lost:
            self._waiting.clear()
            self._lost = True
        if self._waiting or self._lost:
            self._some.set()
        return lost

    async def take(self, picture: Callable[[], Picture]) -> tuple[JobEvent, ...]:
        """All that waits, once there is something; `picture` is what to catch up with then."""
        await self._some.wait()
        self._some.clear()
        events = compare(self._told, picture()) if self._lost else tuple(self._waiting)
        self._lost = False
        self._waiting = []
        for event in events:
            if isinstance(event, JobEnded):
                self._told.pop(event.job.identity, None)
            else:
                self._told[event.job.identity] = event.job
        return events
