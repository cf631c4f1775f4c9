"""`SqliteStateStore`: the port `StateStore` over one file, for one process.

One worker thread uses the database, so the event loop never waits for the disk. Calls are executed
in order. A cancelled call is still executed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from lattice.adapters.sqlite.database import Database
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.state import (
    Change,
    Changed,
    Entry,
    Expect,
    Listing,
    NewerKeys,
    Put,
    check_commit,
    check_key,
    check_lease,
    check_prefix,
    check_value,
)

T = TypeVar("T")

_READ_AT_ONCE = 256
"""Revisions of history that a watch reads at once."""


@asynccontextmanager
async def open_sqlite(folder: Path) -> AsyncIterator[SqliteStateStore]:
    """The store in this folder, created if there is none. Raises `ConfigurationError`."""
    with locked(folder), ThreadPoolExecutor(1, thread_name_prefix="state") as worker:
        loop = asyncio.get_running_loop()
        database = await loop.run_in_executor(worker, Database, folder / "state.db")
        store = SqliteStateStore(database, worker)
        try:
            await store.end_old_leases()
            yield store
        finally:
            store.close()
            await loop.run_in_executor(worker, database.close)


class SqliteLease:
    """Lasts until it is released or the process ends."""

    def __init__(self, number: int, store: SqliteStateStore) -> None:
        self.id = number
        self._store = store
        self._ended = asyncio.Event()

    @property
    def lost(self) -> bool:
        return self._ended.is_set()

    async def wait_lost(self) -> None:
        await self._ended.wait()

    async def release(self) -> None:
        self._ended.set()
        await self._store.end_lease(self.id)

    def lose(self) -> None:
        self._ended.set()


class SqliteStateStore:
    """Created by `open_sqlite`."""

    def __init__(self, database: Database, worker: ThreadPoolExecutor) -> None:
        self._database = database
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._leases: dict[int, SqliteLease] = {}
        self._watches: set[_Watch] = set()
        self._closed = False

    def close(self) -> None:
        """End leases and watches; the next start removes leases that were not released."""
        self._closed = True
        for lease in self._leases.values():
            lease.lose()
        for watch in self._watches:
            watch.woken.set()

    async def get(self, key: str) -> Entry | None:
        """The current value of the key."""
        check_key(key)
        return await self._do(lambda: self._database.get(key))

    async def list(self, prefix: str) -> Listing:
        """Every key that begins with the prefix, sorted by key."""
        check_prefix(prefix)
        return Listing(*await self._do(lambda: self._database.list(prefix)))

    async def newer(self, prefix: str, after: int) -> NewerKeys:
        """Those of them that changed after a revision. Deleted ones show only in the count."""
        check_prefix(prefix)
        return NewerKeys(*await self._do(lambda: self._database.newer(prefix, after)))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Set it unconditionally."""
        check_key(key)
        check_value(key, value)
        put = Put(key, value, lease)
        revision = await self._write(lambda: self._database.commit([], [put]), (key,))
        assert revision is not None, "a put expects nothing"
        return revision

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        """One transaction."""
        check_commit(expect, changes)
        keys = [each.key for each in changes]
        return await self._write(lambda: self._database.commit(expect, changes), keys)

    async def lease(self, ttl_s: int) -> SqliteLease:
        """It lasts as long as the process, because no other process uses the store."""
        check_lease(ttl_s)
        lease = SqliteLease(await self._do(lambda: self._database.grant(ttl_s)), self)
        self._leases[lease.id] = lease
        return lease

    async def end_lease(self, number: int) -> None:
        """End it and delete its keys; if the store is closed, the next start does it."""
        self._leases.pop(number, None)
        if not self._closed:
            await self._write(lambda: self._database.end_lease(number))

    async def end_old_leases(self) -> None:
        """End the leases of earlier processes."""
        for number in await self._do(self._database.leases):
            await self.end_lease(number)

    async def compact(self) -> None:
        """Delete the history of all changes so far."""
        await self._do(lambda: self._database.compact(self._database.revision))

    @asynccontextmanager
    async def watch(
        self, prefix: str, after: int
    ) -> AsyncIterator[AsyncIterator[tuple[Changed, ...]]]:
        """Reads from the history, so that a slow reader takes no memory."""
        check_prefix(prefix)
        batches = self._batches(prefix, after)
        try:
            yield batches
        finally:
            await batches.aclose()

    async def _batches(self, prefix: str, after: int) -> AsyncGenerator[tuple[Changed, ...]]:
        watch = _Watch(prefix, after)
        self._watches.add(watch)
        try:
            while True:
                after = watch.reach
                watch.woken.clear()
                read = lambda: self._database.history(prefix, after, _READ_AT_ONCE)  # noqa: B023, E731
                batches, watch.reach = await self._do(read)
                for batch in batches:
                    yield batch
                if watch.reach < after + _READ_AT_ONCE:
                    await watch.wait()
        finally:
            self._watches.discard(watch)

    async def _do(self, act: Callable[[], T]) -> T:
        if self._closed:
            raise Unavailable("The server is stopping.", hint="Try again in a few seconds.")
        return await self._loop.run_in_executor(self._worker, act)

    async def _write(
        self, act: Callable[[], int | None], keys: Collection[str] | None = None
    ) -> int | None:
        """Do it, and wake the watches of these keys; None: of all."""

        # The worker wakes readers, not the caller: that may be cancelled before it is done.
        def write() -> int | None:
            revision = act()
            if revision is not None:
                self._loop.call_soon_threadsafe(self._written, revision, keys)
            return revision

        return await self._do(write)

    def _written(self, revision: int, keys: Collection[str] | None) -> None:
        for watch in self._watches:
            watch.written(revision, keys)


class _Watch:
    """How far one reader of the history is. It reads only when its own keys may have changed."""

    def __init__(self, prefix: str, after: int) -> None:
        self._prefix = prefix
        self._waits = False
        self.reach = after
        """The last revision that was read, or that has none of its keys."""
        self.woken = asyncio.Event()

    async def wait(self) -> None:
        """Return when there may be something to read."""
        self._waits = True
        try:
            await self.woken.wait()
        finally:
            self._waits = False

    def written(self, revision: int, keys: Collection[str] | None) -> None:
        """Note a write. The writes come in order."""
        if self._waits and not self.woken.is_set():
            if revision <= self.reach:
                return
            of_others = keys is not None and not any(key.startswith(self._prefix) for key in keys)
            if of_others and revision == self.reach + 1:
                self.reach = revision
                return
        self.woken.set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; the lock ends with the process in any case."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "state.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{folder} can't be used: {error.strerror}.",
            hint="Give --single a folder that this user may write to.",
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            raise ConfigurationError(
                f"{folder} is in use by another lattice-server (process {holder or 'unknown'}).",
                hint="One process only may use it. Stop the other, or give another folder.",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(handle)
