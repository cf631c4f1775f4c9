"""Limits that are checked before the bytes of a chunk are read: memory and quota.

A node sends few chunks at once, and a replica has a bounded number of them in memory. The bytes of
the others wait on their nodes. The quota counts the objects in the store, so it also limits a node
that does not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lattice.base.errors import PermissionRefused, RateLimited
from lattice.domain.logs import LogKind
from lattice.domain.objects import ObjectStore
from lattice.features.logs.service.log_keys import AttemptName

MOST_PER_NODE = 2
"""An agent sends one at a time; a second may be left from a broken connection."""
MOST_IN_MEMORY = 12
"""At most 9.5 MiB each."""
NO_QUOTA = 0
_OVERHEAD = 32
"""One part in so many is added for indexes and for chunks with gaps."""
_READ_AGAIN = 8
"""After this replica adds one part in so many, the store is read again: other replicas add too."""
_MOST_KNOWN = 4096


class ChunkPlaces:
    """The chunks that this replica is receiving."""

    def __init__(self, in_memory: int = MOST_IN_MEMORY, per_node: int = MOST_PER_NODE) -> None:
        self._memory = asyncio.Semaphore(in_memory)
        self._per_node = per_node
        self._streams: Counter[str] = Counter()

    @asynccontextmanager
    async def stream(self, node: str) -> AsyncIterator[None]:
        """One chunk of a node, while the context lasts. Raises `RateLimited`."""
        if self._streams[node] >= self._per_node:
            raise RateLimited(
                f"{node} sends {self._per_node} chunks already.",
                hint="Send the next one when they are stored.",
                retry_after_s=1,
            )
        self._streams[node] += 1
        try:
            yield
        finally:
            self._streams[node] -= 1
            if not self._streams[node]:
                del self._streams[node]

    @asynccontextmanager
    async def memory(self) -> AsyncIterator[None]:
        """Memory for one chunk, in the order of requests. A node has at most two requests."""
        async with self._memory:
            yield


@dataclass(slots=True)
class _Stored:
    total_bytes: int
    added_bytes: int = 0
    """The part that was added since the store was read."""


class StoredQuota:
    """How much of a job's output on one node the store may hold."""

    def __init__(self, objects: ObjectStore, most_bytes: int = NO_QUOTA) -> None:
        self._objects = objects
        self._most_bytes = most_bytes
        self._known: OrderedDict[tuple[str, str], _Stored] = OrderedDict()

    async def check(self, name: AttemptName, node: str, size_bytes: int) -> None:
        """Return if so much more may be stored, else raise `PermissionRefused`."""
        if self._most_bytes == NO_QUOTA:
            return
        key = (name.prefix, node)
        stored = self._known.get(key)
        if stored is None or stored.added_bytes > self._most_bytes // _READ_AGAIN:
            stored = self._known[key] = _Stored(await self._held_bytes(name, node))
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        if stored.total_bytes + size_bytes > self._most_bytes + self._most_bytes // _OVERHEAD:
            raise PermissionRefused(
                f"The quota of job {name.allocation.job_id} on {node} is reached: "
                f"{self._most_bytes} bytes are stored.",
                hint="Set logs.job_quota_mb of the server at least as high as that of its agents.",
            )

    def added(self, name: AttemptName, node: str, size_bytes: int) -> None:
        """Count bytes that were stored."""
        stored = self._known.get((name.prefix, node))
        if stored is not None:
            stored.total_bytes += size_bytes
            stored.added_bytes += size_bytes

    async def _held_bytes(self, name: AttemptName, node: str) -> int:
        total = 0
        for kind in LogKind:
            async for each in self._objects.listing(name.stream_prefix(kind, node)):
                total += each.size_bytes
        return total
