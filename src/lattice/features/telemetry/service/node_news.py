"""The queue of one follower over all nodes of a job. No I/O.

While it has room, every event is in it. When it is full, a node's newest measurement takes the
turn of an older one, and the newest change of an alert likewise. What is dropped is counted and
reported. Each step takes the same time, however many wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lattice.domain.node_snapshot import NodeAlert, NodeLeftOut, NodeMeasured, NodeNews

MOST_BEHIND = 1_000
"""Events that wait for one follower before older ones are dropped."""

_Kind: TypeAlias = tuple[str, ...]


@dataclass(eq=False, slots=True)
class _Turn:
    """An event that waits."""

    news: NodeNews
    dropped: int = 0
    """Older measurements that had this turn."""


class FollowedNews:
    """Holds `most` events, and beyond them one of each node and of each alert."""

    def __init__(self, most: int = MOST_BEHIND, on_lost: Callable[[], None] = lambda: None) -> None:
        """`on_lost` is called for each dropped measurement."""
        self._on_lost = on_lost
        self._most = most
        self._turns: deque[_Turn] = deque()
        self._newest: dict[_Kind, _Turn] = {}
        """The newest waiting event of each node and of each alert."""
        self._came = asyncio.Event()

    def give(self, news: NodeNews) -> None:
        """Add news. If the queue is full, it takes the turn of an older event of its kind."""
        kind = _kind_of(news)
        older = self._newest.get(kind)
        if older is not None and len(self._turns) >= self._most and _is_newer(news, older.news):
            if isinstance(news, NodeMeasured):
                older.dropped += 1
                self._on_lost()
            older.news = news
            return
        turn = self._newest[kind] = _Turn(news)
        self._turns.append(turn)
        self._came.set()

    def __aiter__(self) -> FollowedNews:
        return self

    async def __anext__(self) -> NodeNews:
        while not self._turns:
            self._came.clear()
            await self._came.wait()
        turn = self._turns[0]
        if turn.dropped:
            count, turn.dropped = turn.dropped, 0
            return NodeLeftOut(turn.news.node, count)
        self._turns.popleft()
        kind = _kind_of(turn.news)
        if self._newest.get(kind) is turn:
            del self._newest[kind]
        return turn.news


def _kind_of(news: NodeNews) -> _Kind:
    """Measurements of a node and whether it is there are of one kind: their order matters."""
    if isinstance(news, NodeAlert):
        return (news.node, *news.alert.key)
    return (news.node,)


def _is_newer(news: NodeNews, older: NodeNews) -> bool:
    """True if the older event says nothing that the newer one does not."""
    if isinstance(news, NodeAlert):
        return isinstance(older, NodeAlert)
    return isinstance(news, NodeMeasured) and isinstance(older, NodeMeasured)
