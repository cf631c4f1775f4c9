"""The recording of one terminal: events become chunks, and chunks become durable.

    event ─ within 20 ms ─▶ chunk ─ fsync ─▶ on the node ─ carrier ─▶ stored by a server

A chunk is released when both have it. Input makes a chunk at once, and output after `FIRST_CUT_S`
if no other output came shortly before: a key is shown soon. Output that follows waits for `CUT_S`,
and a chunk that takes long lets the next one grow, so a flood costs few chunks. But every chunk
fits in one frame, also if it can't be compressed. Otherwise nobody could store it, and what was
typed meanwhile would be missing. A recording that can't go on is stopped, with a reason: then
nothing is released any more.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lattice.base.clock import Clock
from lattice.domain.asciicast import CastEvent, CastHeader, CastKind, event_line
from lattice.domain.recording import (
    ChunkText,
    RecordedChunk,
    RecordingPosition,
    first_position,
    write_chunk,
)
from lattice.domain.sealed import DataKey
from lattice.features.attach.recording_frames import RecordingOrder

_log = logging.getLogger(__name__)

CUT_S = 0.02
FIRST_CUT_S = 0.002
CUT_BYTES = 32 * 1024
LARGEST_EVENT_BYTES = 32 * 1024
"""Larger ones become several."""
_MOST_LINES_BYTES = 176 * 1024
"""Of a chunk; one event alone may have more, since a byte that is no text becomes six."""
MOST_UNSTORED_BYTES = 32 * 1024 * 1024
"""In memory, beside what the agent needs. Output stays far below: its reader gives it no room."""
ROOM_BYTES = 8 * 1024 * 1024
"""Input waits while so much is not stored."""
LONGEST_UNSTORED_S = 30.0
_MICROSECONDS = 1_000_000
_CHECK_EVERY_S = 1.0
IMPOSSIBLE = "recording impossible"


class ChunkDisk(Protocol):
    """Where chunks are until they are stored elsewhere. The methods block."""

    def append(self, number: int, chunk: bytes) -> None:
        """Durable when it returns. Raises `OSError`."""

    def stored(self, number: int) -> None: ...

    def remove(self) -> None: ...

    def close(self) -> None: ...


class RecorderListener(Protocol):
    """Follows the chunks of one recording."""

    def chunk_on_disk(self, chunk: RecordedChunk) -> None: ...

    def chunk_stored(self) -> None: ...

    def recording_stopped(self, reason: str) -> None: ...


class RecordingStopped(Exception):
    """There is no recording any more; the text says why."""


@dataclass(slots=True)
class _Batch:
    """Events that become one chunk."""

    events: list[CastEvent] = field(default_factory=list)
    size_bytes: int = 0
    """Of their lines."""


class Recorder:
    """One recording. `run` has to run while it lasts."""

    def __init__(
        self,
        key: DataKey,
        order: RecordingOrder,
        disk: ChunkDisk,
        node: str,
        clock: Clock,
        listener: RecorderListener,
    ) -> None:
        self._key = key
        self._order = order
        self._disk = disk
        self._node = node
        self._clock = clock
        self._listener = listener
        self._begun_s = clock.monotonic()
        self._position: RecordingPosition = first_position(order.name)
        self._batches = deque([_Batch(size_bytes=len(self._header().line()))])
        """Those of the next chunks; events are added to the last one."""
        self._add(self._event(CastKind.MARK, f"node {node}".encode()))
        self._cut_now = asyncio.Event()
        self._output_cut_s = float("-inf")
        """When a chunk with output was made last."""
        self._dirty = asyncio.Event()
        self._dirty.set()
        self._moved = asyncio.Condition()
        self._ended = asyncio.Event()
        self._local = -1
        """The last chunk on the disk."""
        self.stored_number = -1
        """The last chunk that is stored elsewhere; all before it are, too."""
        self._unstored: dict[int, tuple[RecordedChunk, float]] = {}
        self._unstored_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._last_reason: str | None = None
        self._is_over = False
        self.stopped = ""
        """Why there is no recording any more; empty: it goes on, or is whole."""

    @property
    def is_whole(self) -> bool:
        """True when the last chunk is stored."""
        return self._is_over and self.stored_number == self._position.number - 1

    @property
    def has_end(self) -> bool:
        """True once its last event is known."""
        return self._last_reason is not None

    @property
    def is_ended(self) -> bool:
        """True once nothing more can be recorded."""
        return self.has_end or bool(self.stopped)

    def unstored(self) -> tuple[RecordedChunk, ...]:
        """The chunks on the disk that a server has to store, in order."""
        return tuple(chunk for n, (chunk, _) in self._unstored.items() if n <= self._local)

    def record(self, kind: CastKind, data: bytes, *, now: bool = False) -> int:
        """Take an event; returns the number of the chunk that ends it.

        Raises `RecordingStopped`.
        """
        if self.is_ended:
            raise RecordingStopped(self.stopped or "the recording has ended")
        for at in range(0, max(1, len(data)), LARGEST_EVENT_BYTES):
            self._add(self._event(kind, data[at : at + LARGEST_EVENT_BYTES]))
        self._dirty.set()
        if now or len(self._batches) > 1 or self._batches[0].size_bytes >= CUT_BYTES:
            self._cut_now.set()
        return self._newest

    def end(self, reason: str) -> int:
        """Make the last chunk now; returns its number."""
        if self._last_reason is None:
            self._last_reason = reason
            self._dirty.set()
            self._cut_now.set()
        return self._newest

    async def room(self) -> None:
        """Wait until most of what was recorded is stored. Raises `RecordingStopped`."""
        await self._room.wait()
        if self.stopped:
            raise RecordingStopped(self.stopped)

    async def on_disk(self, number: int) -> None:
        """Wait until a chunk is on the disk. Raises `RecordingStopped`."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._local >= number or self.stopped)
        if self._local < number:
            raise RecordingStopped(self.stopped)

    async def on_end(self) -> None:
        """Wait until the last chunk is stored, or the recording is stopped."""
        await self._ended.wait()

    def stored(self, number: int, link: bytes) -> None:
        """A server has stored a chunk, and all before it. Raises `RecordingStopped`."""
        known = self._unstored.get(number)
        if known is None:
            return
        if known[0].link != link:
            self.stop("the object store has another chunk")
            raise RecordingStopped(self.stopped)
        for each in [each for each in self._unstored if each <= number]:
            chunk, _ = self._unstored.pop(each)
            self._unstored_bytes -= len(chunk.data)
        if self._unstored_bytes < ROOM_BYTES:
            self._room.set()
        self.stored_number = number
        self._disk.stored(number)
        self._listener.chunk_stored()
        if self.is_whole:
            self._ended.set()

    def hand_over(self) -> None:
        """Wait for no answers any more: a server has asked for all chunks."""
        if not self.is_whole and not self.stopped:
            self.stopped = "the session is over"
            self._room.set()
            self._dirty.set()
            self._ended.set()
            self._listener.recording_stopped(self.stopped)

    def stop(self, reason: str) -> None:
        """End the recording as it is: what is not durable yet is never released."""
        if self.stopped or self.is_whole:
            return
        self.stopped = f"{IMPOSSIBLE}: {reason}"
        _log.warning("session %s: %s", self._order.session, self.stopped)
        self._room.set()
        self._dirty.set()
        self._ended.set()
        self._listener.recording_stopped(self.stopped)

    async def run(self) -> None:
        """Make chunks until the last one, or until the recording is stopped."""
        watching = asyncio.create_task(self._watch(), name="recording watch")
        try:
            while not self.stopped and not self._is_over:
                await self._cut()
        except OSError as error:
            self.stop(self._fault(error))
        except Exception:
            self.stop("a defect of the recorder")
            raise
        finally:
            if self._is_over and not self.stopped:
                with suppress(asyncio.CancelledError):
                    await watching
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._notify()

    async def _cut(self) -> None:
        await self._dirty.wait()
        if not self._cut_now.is_set():
            quiet = self._clock.monotonic() - self._output_cut_s > CUT_S
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_CUT_S if quiet else CUT_S):
                    await self._cut_now.wait()
        if self.stopped:
            return
        events = tuple(self._batches.popleft().events)
        if any(each.kind is CastKind.OUTPUT for each in events):
            self._output_cut_s = self._clock.monotonic()
        last = self._last_reason is not None and not self._batches
        if not self._batches:
            self._dirty.clear()
            self._cut_now.clear()
        if not self._batches and not last:
            self._batches.append(_Batch())
        position = self._position
        text = ChunkText(
            position.totals,
            events,
            self._header() if position.number == 0 else None,
            (self._last_reason or "") if last else "",
        )
        chunk, self._position = write_chunk(self._key, self._order.name, position, text, last=last)
        self._is_over = last
        number = chunk.head.number
        self._unstored[number] = (chunk, self._clock.monotonic())
        self._unstored_bytes += len(chunk.data)
        if self._unstored_bytes >= ROOM_BYTES:
            self._room.clear()
        if self._unstored_bytes > MOST_UNSTORED_BYTES:
            self.stop("the object store does not answer")
            return
        await asyncio.to_thread(self._disk.append, number, chunk.data)
        self._local = number
        self._listener.chunk_on_disk(chunk)
        await self._notify()

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _watch(self) -> None:
        while not self.stopped and not self.is_whole:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_EVERY_S):
                    await self._ended.wait()
            oldest = next(iter(self._unstored.values()), None)
            if oldest is not None and self._clock.monotonic() - oldest[1] > LONGEST_UNSTORED_S:
                self.stop(
                    f"the object store has not answered for {LONGEST_UNSTORED_S:.0f} s"
                    if oldest[0].head.number <= self._local
                    else f"the disk of {self._node} does not answer"
                )
                await self._notify()

    @property
    def _newest(self) -> int:
        """The number of the chunk that events are added to, or of the last one."""
        return self._position.number + len(self._batches) - 1

    def _add(self, event: CastEvent) -> None:
        size = len(event_line(event, event.at_us))
        newest = self._batches[-1]
        if newest.events and newest.size_bytes + size > _MOST_LINES_BYTES:
            newest = _Batch()
            self._batches.append(newest)
        newest.events.append(event)
        newest.size_bytes += size

    def _event(self, kind: CastKind, data: bytes) -> CastEvent:
        since_s = self._clock.monotonic() - self._begun_s
        return CastEvent(round(since_s * _MICROSECONDS), kind, data)

    def _header(self) -> CastHeader:
        order = self._order
        return CastHeader(
            columns=order.columns,
            rows=order.rows,
            terminal=order.terminal,
            timestamp=order.timestamp,
            command=order.command,
        )

    def _fault(self, error: OSError) -> str:
        if error.errno in (None, errno.ENOSPC, errno.EDQUOT):
            return f"disk full on {self._node}"
        return f"the disk of {self._node} fails ({errno.errorcode.get(error.errno or 0, '?')})"
