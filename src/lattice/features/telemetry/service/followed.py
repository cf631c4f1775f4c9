"""News from a job's nodes, queued for one follower: bounded, and alerts are never dropped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from lattice.domain.node_snapshot import NodeAlert, NodeMeasured, NodeNews

MOST_BEHIND = 1_000


class FollowedNews:
    """The queue of one follower over all nodes; `lost` counts dropped measurements."""

    def __init__(self, most: int = MOST_BEHIND, on_lost: Callable[[], None] = lambda: None) -> None:
        self._on_lost = on_lost
        self._most = most
        self._waiting: deque[NodeNews] = deque()
        self._came = asyncio.Event()
        self.lost = 0

    def give(self, news: NodeNews) -> None:
        """Add news. A full queue drops its oldest measurement, and nothing else."""
        if len(self._waiting) >= self._most:
            oldest = next((each for each in self._waiting if isinstance(each, NodeMeasured)), None)
            if oldest is not None:
                self._waiting.remove(oldest)
                self._note_lost()
            elif isinstance(news, NodeMeasured):
                self._note_lost()
                return
            elif isinstance(news, NodeAlert):
                self._forget_older(news)
        self._waiting.append(news)
        self._came.set()

    def _note_lost(self) -> None:
        self.lost += 1
        self._on_lost()

    def _forget_older(self, news: NodeAlert) -> None:
        """Remove an older entry of the same alert."""
        for each in self._waiting:
            if (
                isinstance(each, NodeAlert)
                and each.node == news.node
                and each.alert.key == news.alert.key
            ):
                self._waiting.remove(each)
                return

    def __aiter__(self) -> FollowedNews:
        return self

    async def __anext__(self) -> NodeNews:
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        return self._waiting.popleft()
