"""A door to the state in memory whose calls let others in between, by a drawn schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from lattice.domain.state import Change, Entry, Expect, Listing
from tests.fakes.in_memory_state import InMemoryStateStore


class InterleavedStateStore(InMemoryStateStore):
    """Each call waits for so many turns of the loop before it and after it as `turns` says."""

    turns: Iterator[int] = iter(())

    async def _wait(self) -> None:
        for _ in range(next(self.turns, 0)):
            await asyncio.sleep(0)

    async def get(self, key: str) -> Entry | None:
        await self._wait()
        found = await super().get(key)
        await self._wait()
        return found

    async def list(self, prefix: str) -> Listing:
        await self._wait()
        found = await super().list(prefix)
        await self._wait()
        return found

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        await self._wait()
        found = await super().commit(expect, changes)
        await self._wait()
        return found

    def door(self, turns: Sequence[int]) -> InterleavedStateStore:
        """Another replica's, with a schedule of its own."""
        door = InterleavedStateStore(self.clock, self.space)
        door.turns = iter(turns)
        return door
