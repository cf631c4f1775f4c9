"""When a follower reads again, and what changed meanwhile.

It reads as soon as something came, and at least once a second.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from lattice.features.logs.service.live_stream import FedStream

_ROUND_S = 1.0
_SETTLE_S = 0.05
"""Lines of several nodes within this time are put in the order of time."""
_GATHER_S = 0.01
"""In a flood, the pause to gather more."""


class Rounds:
    """The port `FeedListener`. It keeps each change once, however slow the follower is.

    One timer serves many changes.
    """

    def __init__(self) -> None:
        self._awake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._second_passed = False
        self._nodes: dict[str, None] = {}
        self._streams: dict[FedStream, None] = {}

    def node_changed(self, node: str) -> None:
        """Note that there is something to report about a node."""
        self._nodes[node] = None
        self._awake.set()

    def stream_changed(self, stream: FedStream) -> None:
        """Note that there is something to read."""
        self._streams[stream] = None
        self._awake.set()

    def take_nodes(self) -> tuple[str, ...]:
        """The nodes that changed since the last call, in the order of their first change."""
        taken, self._nodes = tuple(self._nodes), {}
        return taken

    def take_streams(self) -> tuple[FedStream, ...]:
        """The streams that changed since the last call, in the order of their first change."""
        taken, self._streams = tuple(self._streams), {}
        return taken

    async def next(self, *, many: bool, gather: bool) -> bool:
        """Wait for the next round; True about once a second.

        `many` nodes settle; with `gather` more may come meanwhile.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_ROUND_S, self._time_out)
        if not self._has_changes:
            await self._awake.wait()
        pause_s = _SETTLE_S if many else _GATHER_S if gather else 0.0
        if pause_s and self._has_changes:
            await asyncio.sleep(pause_s)
        self._awake.clear()
        second_passed, self._second_passed = self._second_passed, False
        return second_passed

    async def change(self, within_s: float) -> None:
        """Wait for the next change, but not longer than this. Nothing is taken."""
        self._awake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._awake.wait()

    @property
    def _has_changes(self) -> bool:
        return bool(self._nodes or self._streams)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _time_out(self) -> None:
        self._timer = None
        self._second_passed = True
        self._awake.set()
