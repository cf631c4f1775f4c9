"""Viewers of one job in one process: each has a client of the SDK and a connection of its own.

They ask for a stream as every program does, so they read it in the form that the SDK prefers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lattice.base.errors import LatticeError
from lattice.client import Client, Settings
from lattice.features.logs.model import LogBlock, LogNote, NoteKind
from lattice.features.logs.operations import LogChoice

_TRIES = 60
_TRY_EVERY_S = 0.5


@dataclass
class Viewer:
    """What one of them has had."""

    lines: int = 0
    bytes: int = 0
    nodes: set[str] = field(default_factory=set)
    complete_at: float = 0.0
    """When it had a line of every node."""
    is_lost: bool = False
    """Its stream ended, or was cut once."""

    def take(self, block: LogBlock, node_count: int) -> None:
        """Count a block; the beginning of a line is none."""
        self.bytes += len(block.text)
        if block.unfinished:
            return
        self.lines += block.count
        self.nodes.add(block.node)
        if not self.complete_at and len(self.nodes) >= node_count:
            self.complete_at = time.monotonic()


class Viewers:
    """All of them; `changed` is called at every block."""

    def __init__(
        self,
        settings: Settings,
        job: str,
        count: int,
        *,
        nodes: int = 1,
        pause_s: float = 0.0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`pause_s` is how long each waits after a block before it takes the next."""
        self.each = [Viewer() for _ in range(count)]
        self._settings = settings
        self._job = job
        self._nodes = nodes
        self._pause_s = pause_s
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, choice: LogChoice, *, apart_s: float = 0.0) -> None:
        """One after the other."""
        clients = [Client(self._settings) for _ in self.each]
        for viewer, client in zip(self.each, clients, strict=True):
            self._tasks.append(asyncio.create_task(self._view(viewer, client, choice)))
            await asyncio.sleep(apart_s)

    def check(self) -> None:
        """Raise what ended one of them, if anything did."""
        for task in self._tasks:
            if task.done():
                task.result()

    @property
    def seated(self) -> int:
        """How many have had a line."""
        return sum(each.lines > 0 for each in self.each)

    @property
    def lost(self) -> int:
        return sum(each.is_lost for each in self.each)

    async def _view(self, viewer: Viewer, client: Client, choice: LogChoice) -> None:
        """Until the stream ends; asked again while the server does not know the job yet."""
        async with client:
            for left in reversed(range(_TRIES)):
                try:
                    await self._follow(viewer, client, choice)
                except LatticeError:
                    if not left and not viewer.lines:
                        raise
                if viewer.lines:
                    viewer.is_lost = True
                    return
                await asyncio.sleep(_TRY_EVERY_S)

    async def _follow(self, viewer: Viewer, client: Client, choice: LogChoice) -> None:
        async with client.logs(self._job, follow=True, **choice) as records:
            async for record in records:
                if isinstance(record, LogNote) and record.kind is NoteKind.DISCONNECTED:
                    # Of a node: it has not answered yet.
                    viewer.is_lost = viewer.is_lost or not record.node
                if isinstance(record, LogBlock):
                    viewer.take(record, self._nodes)
                    self._changed()
                    if self._pause_s:
                        await asyncio.sleep(self._pause_s)
