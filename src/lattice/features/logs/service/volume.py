"""How much an attempt wrote over time, from the indexes of its chunks. No text is read.

An index has the times at which parts of each frame were read. Where chunks overlap, each byte
counts once. Text that was there long before the agent's first reading has no time of its own. It is
named and not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lattice.base.clock import Clock
from lattice.domain.attempts import JobAttempt
from lattice.domain.log_volume import MOST_STEPS, LogVolume
from lattice.domain.logchunk import PlacedFrame, unpack_marks
from lattice.domain.logs import Gap, LogKind
from lattice.domain.objects import BadKeyPart, ObjectInfo, ObjectStore, unescaped
from lattice.features.logs.service.indexes import Indexes
from lattice.features.logs.service.log_keys import AttemptName, name_of
from lattice.features.logs.service.ranges import ChunkRange, Resolved

MOST_CHUNKS = 512
"""Of one attempt. An index costs one read of some kilobytes."""
_MOST_NUMBERS = 200_000
"""In the cached indexes; about 8 MB."""
_SOON_S = 10.0
"""Text that was there when the agent first read so soon after the start was written just before."""
_SUFFIX = ".log.zst"


@dataclass(frozen=True, slots=True)
class StreamGap:
    """A gap and where it is."""

    node: str
    kind: LogKind
    source: str
    gap: Gap


class VolumeReader:
    """Reads volumes of attempts. Sensitive work has none here: its chunks are sealed."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._indexes = Indexes(objects, _MOST_NUMBERS)

    async def of(self, attempt: JobAttempt) -> tuple[LogVolume, tuple[StreamGap, ...]]:
        """The volume without its losses, and the gaps. Raises `Unavailable`."""
        started, ended = attempt.attempt.started, attempt.attempt.ended
        if started is None:
            return LogVolume(), ()
        try:
            infos = await self._chunks(name_of(attempt))
        except BadKeyPart:
            return LogVolume(), ()
        if len(infos) > MOST_CHUNKS:
            reason = f"its {len(infos)} stored parts are more than {MOST_CHUNKS}"
            return LogVolume(missing=f"{reason}."), ()
        found = await asyncio.gather(*(self._chunk(each) for each in infos))
        until = ended or self._clock.now()
        length_s = max((until - started).total_seconds(), 1.0)
        step_s = max(1.0, length_s / MOST_STEPS)
        streams: dict[tuple[str, str], list[ChunkRange]] = {}
        for each in found:
            if each is not None:
                folder = each.key.rpartition("/")[0]
                streams.setdefault((folder, each.index.source), []).append(each)
        resolved = [Resolved(each) for each in streams.values()]
        volume = await asyncio.to_thread(_volume, resolved, started.timestamp(), step_s)
        if ended is None:
            # More of the newest step may come.
            volume = replace(volume, steps=volume.steps[:-1])
        return volume, tuple(_gaps(resolved))

    async def _chunks(self, name: AttemptName) -> list[ObjectInfo]:
        return [
            each
            for kind in LogKind
            async for each in self._objects.listing(f"{name.prefix}/{kind.value}/")
            if each.key.endswith(_SUFFIX)
        ]

    async def _chunk(self, info: ObjectInfo) -> ChunkRange | None:
        index = await self._indexes.of(info)
        if index is None or unescaped(info.key.split("/")[-2]) != index.node:
            return None
        return ChunkRange(info.key, index, info.modified)


def _volume(streams: Iterable[Resolved], begin: float, step_s: float) -> LogVolume:
    """Count all bytes in steps. Runs in a thread: indexes may have many times."""
    steps: dict[int, float] = {}
    late_bytes = 0
    for placed, first, last in _parts(streams):
        if placed.frame.late and placed.times_ms[0] / 1000 - begin > max(step_s, _SOON_S):
            late_bytes += last - first
            continue
        for at, size_bytes, time_ms in _marks(placed, step_s):
            counted = min(at + size_bytes, last) - max(at, first)
            number = int((time_ms / 1000 - begin) // step_s)
            if counted > 0:
                # A clock that was a little off is no reason to lose a byte.
                number = min(max(number, 0), MOST_STEPS - 1)
                steps[number] = steps.get(number, 0.0) + counted
    late = f"{late_bytes} bytes are older than the first reading, and have no time."
    return LogVolume(
        begin=begin,
        step_s=step_s,
        steps=tuple(steps.get(each, 0.0) for each in range(max(steps, default=-1) + 1)),
        missing=late if late_bytes else "",
    )


def _parts(streams: Iterable[Resolved]) -> Iterator[tuple[PlacedFrame, int, int]]:
    """Every frame with the range of it that its chunk provides."""
    for stream in streams:
        for part in stream.ranges:
            for placed in part.chunk.index.placed():
                first = max(part.begin, placed.begin.offset)
                last = min(part.end, placed.end.offset)
                if first < last:
                    yield placed, first, last


def _marks(placed: PlacedFrame, step_s: float) -> Iterator[tuple[int, int, int]]:
    """Parts of a frame: the offset, the size, and when it was read."""
    first_ms, last_ms = placed.times_ms
    begin = placed.begin.offset
    if last_ms - first_ms < step_s * 1000:
        yield begin, placed.frame.plain_bytes, last_ms
        return
    before = 0
    for size_bytes, time_ms in unpack_marks(placed.frame.marks):
        yield begin + before, size_bytes - before, time_ms
        before = size_bytes


def _gaps(streams: Iterable[Resolved]) -> Iterator[StreamGap]:
    for stream in streams:
        seen: set[tuple[int, str]] = set()
        for part in stream.ranges:
            index = part.chunk.index
            for gap in index.gaps:
                key = (gap.at.offset, gap.cause.value)
                if part.holds(gap) and key not in seen:
                    seen.add(key)
                    yield StreamGap(index.node, index.kind, index.source, gap)
