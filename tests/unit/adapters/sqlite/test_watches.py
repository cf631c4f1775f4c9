"""Which writes make a watch read the history: those of its own keys alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.adapters.sqlite import database as database_module
from lattice.adapters.sqlite.database import Database
from lattice.adapters.sqlite.store import SqliteStateStore, open_sqlite
from lattice.domain.state import Changed, Delete, Put
from tests.eventually import eventually_async

Batches = AsyncIterator[tuple[Changed, ...]]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStateStore]:
    async with open_sqlite(tmp_path) as opened:
        yield opened


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prefixes of which the history was read."""
    found: list[str] = []
    history = Database.history

    def counted(
        self: Database, prefix: str, after: int, most: int
    ) -> tuple[tuple[tuple[Changed, ...], ...], int]:
        found.append(prefix)
        return history(self, prefix, after, most)

    monkeypatch.setattr(Database, "history", counted)
    return found


async def waiting(batches: Batches, reads: list[str]) -> asyncio.Task[tuple[Changed, ...]]:
    """A watch that has read everything and waits."""
    reads.clear()

    async def next_batch() -> tuple[Changed, ...]:
        return await anext(batches)

    task = asyncio.create_task(next_batch())
    await eventually_async(lambda: len(reads), lambda count: count == 1)
    return task


async def test_a_write_of_other_keys_is_not_read(store: SqliteStateStore, reads: list[str]) -> None:
    now = await store.put("a/1", b"")
    async with store.watch("a/", now) as batches:
        coming = await waiting(batches, reads)
        for number in range(20):
            await store.put(f"b/{number}", b"")
        assert reads == ["a/"]
        await store.commit([], [Put("b/0", b"x"), Put("a/2", b"y")])
        (change,) = await coming
        assert (change.key, reads) == ("a/2", ["a/", "a/"])


async def test_every_write_of_its_own_keys_is_seen_whatever_comes_between(
    store: SqliteStateStore, reads: list[str]
) -> None:
    now = await store.put("a/0", b"")
    async with store.watch("a/", now) as batches:
        first = await waiting(batches, reads)
        for number in range(60):
            await store.put(f"{'a' if number % 3 == 0 else 'b'}/{number}", b"")
        seen = [(await first)[0].key]
        while len(seen) < 20:
            seen += [change.key for change in await anext(batches)]
        assert seen == [f"a/{number}" for number in range(0, 60, 3)]


async def test_the_end_of_a_lease_is_seen(store: SqliteStateStore, reads: list[str]) -> None:
    lease = await store.lease(10)
    now = await store.put("a/1", b"", lease.id)
    async with store.watch("a/", now) as batches:
        coming = await waiting(batches, reads)
        await lease.release()
        (change,) = await coming
        assert (change.key, change.entry) == ("a/1", None)


async def test_a_watch_that_waits_is_never_too_old(
    store: SqliteStateStore, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "HISTORY_REVISIONS", 100)
    now = await store.put("a/1", b"")
    async with store.watch("a/", now) as batches:
        coming = await waiting(batches, reads)
        for number in range(500):
            await store.put("b", b"%d" % number)
        await store.commit([], [Delete("nothing")])
        await store.put("a/1", b"late")
        (change,) = await coming
        assert change.entry is not None
        assert change.entry.value == b"late"
