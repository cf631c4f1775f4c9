"""Where the port `StateStore` is tried: in memory, in a file, or on a real etcd.

A place can be told what an accident would do; the suite only looks at the port.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from lab.doorway import Doorway
from lab.laboratory import Lab
from lattice.adapters.etcd.members import EtcdTls, Members
from lattice.adapters.etcd.store import EtcdStateStore, store_of
from lattice.adapters.sqlite.store import SqliteStateStore, open_sqlite
from lattice.base.clock import SystemClock
from lattice.domain.state import StateStore
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock


class Place(Protocol):
    @property
    def store(self) -> StateStore:
        """One process's store."""

    async def pass_time(self, seconds: float) -> None: ...
    async def settle(self) -> None:
        """Let a watch see what has happened."""

    async def lose_process(self) -> None:
        """The process dies without a word; `store` is then its successor's."""

    async def cut_off(self) -> None:
        """The store can't be reached any more."""

    async def compact(self) -> None: ...


class MemoryPlace:
    def __init__(self) -> None:
        self._clock = ManualClock()
        self.store = InMemoryStateStore(self._clock)

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)
        self.store.sweep()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def lose_process(self) -> None:
        self.store.die()
        self.store = self.store.another()

    async def cut_off(self) -> None:
        self.store.away = True

    async def compact(self) -> None:
        self.store.compact()


class FilePlace:
    """`close` at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self.store: SqliteStateStore

    async def open(self) -> None:
        self.store = await self._stack.enter_async_context(open_sqlite(self._folder))

    async def close(self) -> None:
        await self._stack.aclose()

    async def pass_time(self, seconds: float) -> None:
        del seconds  # nothing here depends on time
        await self.settle()

    async def settle(self) -> None:
        await asyncio.sleep(0.01)

    async def lose_process(self) -> None:
        await self.close()
        await self.open()

    async def cut_off(self) -> None:
        await self.close()

    async def compact(self) -> None:
        await self.store.compact()


class EtcdPlace:
    """Three real members behind doors; every place has a root of its own."""

    def __init__(self, lab: Lab, doorway: Doorway) -> None:
        self.lab = lab
        self.doorway = doorway
        self._root = f"/try/{uuid.uuid4().hex}/"
        self._stack = AsyncExitStack()
        self.store: EtcdStateStore

    async def open(self) -> None:
        self.store = await self.another()

    async def another(self, *numbers: int) -> EtcdStateStore:
        """A store of its own connections; by the doors named it begins with the first."""
        addresses = self.doorway.addresses
        members = Members(
            [f"https://{addresses[each]}" for each in numbers or range(len(addresses))],
            self.tls,
            SystemClock(),
            first=lambda _count: 0,
        )
        store = store_of(members, SystemClock(), root=self._root)
        return await self._stack.enter_async_context(store)

    @property
    def tls(self) -> EtcdTls:
        client = self.lab.etcd.client
        return EtcdTls(client.authority, client.certificate, client.key)

    async def close(self) -> None:
        self.doorway.open()
        await self._stack.aclose()

    async def pass_time(self, seconds: float) -> None:
        # etcd looks for expired leases twice a second.
        await asyncio.sleep(seconds + 1.0)

    async def settle(self) -> None:
        await asyncio.sleep(0.05)

    async def lose_process(self) -> None:
        await self.store.aclose()
        await self.open()

    async def cut_off(self) -> None:
        self.doorway.shut()

    async def compact(self) -> None:
        await self.store.compact((await self.store.list("")).revision)
