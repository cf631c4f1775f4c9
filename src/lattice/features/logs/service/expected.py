"""Which chunks the server still expects from a node for an attempt.

A stream with its last chunk is complete. After that only chunks that fill a hole before its end are
accepted. Long after an attempt's end a new stream is accepted in two cases: its node has stored
nothing yet, or not all of its streams are complete. Such a node was away and sends what it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from lattice.base.clock import Clock
from lattice.domain.logchunk import ChunkIndex
from lattice.domain.logs import LogKind, LogSource, StreamName
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
    """Reads the store. Every method raises `Unavailable` while it does not answer."""

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
