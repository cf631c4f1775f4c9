"""Which chunks a server accepts from a node: those that it expects, within memory and quota.

A node sends few chunks at once, and a replica has a bounded number of them in memory. The bytes of
the others wait on their nodes. The quota counts the objects in the store, so it also limits a node
that does not count.

A stream with its last chunk is complete. After that only chunks that fill a hole before its end are
accepted. Long after an attempt's end a new stream is accepted in two cases. Its node has stored
nothing yet, or not all of its streams are complete. Such a node was away and sends what it has.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.base.errors import PermissionRefused, RateLimited
from lattice.domain.logchunk import ChunkIndex
from lattice.domain.logs import LogKind, LogSource, StreamName
from lattice.domain.objects import ObjectStore
from lattice.features.logs.service.archive import Archive, Span
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.retention import Removals
from lattice.features.logs.service.stored import StoredStream

LONG = timedelta(minutes=10)
"""After the end of an attempt, and after the last chunk of a node that was late."""
SEALED = "the stream is sealed, its last chunk is stored"
COMPLETE = "the attempt ended, and all output of this node is stored"
REMOVED = "the logs of this attempt were removed by the retention"
_ENDS_ALONE = Span(tail=0)


class Expected:
    """Which chunks are still expected. Raises `Unavailable` while the store does not answer."""

    def __init__(self, archive: Archive, removals: Removals, clock: Clock) -> None:
        self._archive = archive
        self._removals = removals
        self._clock = clock

    async def refusal(self, name: AttemptName, index: ChunkIndex) -> str:
        """Why this chunk is not expected; empty if it is."""
        node = index.node
        long_over = self.is_long_over(name)
        kinds = tuple(LogKind) if long_over else (index.kind,)
        streams = await self._archive.streams(name, kinds, (node,), _ENDS_ALONE)
        own = StreamName(node, index.kind, LogSource.parse(index.source))
        stream = streams.get(own)
        if stream is not None and stream.last:
            return "" if await self._fills_a_hole(name, own, index) else SEALED
        if stream is not None or not long_over:
            return ""
        if not streams:
            return REMOVED if await self._removals.of(name) is not None else ""
        return COMPLETE if self._is_settled(streams.values()) else ""

    async def is_complete(self, name: AttemptName, node: str) -> bool:
        """True if the attempt is long over, and nothing of this node is missing or in progress."""
        if not self.is_long_over(name):
            return False
        streams = await self._archive.streams(name, LogKind, (node,), _ENDS_ALONE)
        return self._is_settled(streams.values())

    def is_long_over(self, name: AttemptName) -> bool:
        """True if the attempt ended more than 10 minutes ago, by Slurm."""
        ended = name.attempt.ended
        return ended is not None and self._clock.now() - ended > LONG

    def _is_settled(self, streams: Iterable[StoredStream]) -> bool:
        """True if all streams are complete, and for `LONG`; a late node needs time for each."""
        found = tuple(streams)
        newest = max((each.newest for each in found), default=None)
        if newest is None or not all(each.last for each in found):
            return False
        return self._clock.now() - newest > LONG

    async def _fills_a_hole(self, name: AttemptName, own: StreamName, index: ChunkIndex) -> bool:
        streams = await self._archive.streams(name, (own.kind,), (own.node,))
        stream = streams.get(own)
        if stream is None or stream.resolved.sealed is None:
            return True
        begin, end = index.begin.offset, index.end.offset
        inside = begin < end <= stream.resolved.sealed
        return inside and not stream.resolved.overlaps(begin, end)


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


class ChunkSlots:
    """The chunks that this replica is receiving."""

    def __init__(self, in_memory: int = MOST_IN_MEMORY, per_node: int = MOST_PER_NODE) -> None:
        self.memory = asyncio.Semaphore(in_memory)
        """Held for each chunk in memory, in the order of requests."""
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


@dataclass(slots=True)
class _Stored:
    total_bytes: int
    added_bytes: int = 0
    """The part that was added since the store was read."""


class StoredQuota:
    """How much of a job's output on one node the store may hold."""

    def __init__(self, objects: ObjectStore, most_bytes: int = NO_QUOTA) -> None:
        self._objects = objects
        self.most_bytes = most_bytes
        self._known: OrderedDict[tuple[str, str], _Stored] = OrderedDict()

    async def check(self, name: AttemptName, node: str, size_bytes: int) -> None:
        """Return if so much more may be stored, else raise `PermissionRefused`."""
        if self.most_bytes == NO_QUOTA:
            return
        key = (name.prefix, node)
        stored = self._known.get(key)
        if stored is None or stored.added_bytes > self.most_bytes // _READ_AGAIN:
            stored = self._known[key] = _Stored(await self._held_bytes(name, node))
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        if stored.total_bytes + size_bytes > self.most_bytes + self.most_bytes // _OVERHEAD:
            raise PermissionRefused(
                f"The quota of job {name.allocation.job_id} on {node} is reached: "
                f"{self.most_bytes} bytes are stored.",
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
