"""One terminal that shows nothing before it is recorded, over all its connections.

    client ── server ── NearCarrier ── RecordedTerminal ── carrier ── holder ── the program

What is typed waits until its chunk is on this node's disk, and until the server has stored most of
what was typed before. So a file that is sent to a program is as fast as the object store. What is
shown waits until its chunk is durable in both places.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from lattice.base.clock import Clock
from lattice.domain.asciicast import CastKind, resized
from lattice.domain.pipe import WINDOW_BYTES, FrameKind
from lattice.domain.recording import RecordedChunk
from lattice.domain.sealed import DataKey
from lattice.domain.stream import Carrier, CarrierLost
from lattice.domain.terminal import (
    BadMessage,
    Errors,
    Exit,
    Output,
    Resize,
    Signal,
    Started,
    Stdin,
    StdinEnd,
    TerminalMessage,
    read_message,
)
from lattice.features.attach.node.chunk_files import ChunkFiles
from lattice.features.attach.node.recorder import Recorder, RecordingStopped
from lattice.features.attach.recording_frames import (
    BadRecordingFrame,
    RecordingOrder,
    chunk_frame,
    is_of_recording,
    read_stored,
    stopped_frame,
)

_log = logging.getLogger(__name__)

AWAY_S = 60.0
"""How long a client may be away: as long as other sessions wait for theirs."""
GRACE_S = 5.0
"""For another connection to the holder, after one was lost."""
_PING_EVERY_S = 3.0
_HEAD = struct.Struct("!BQQ")
_CARRIED = frozenset({FrameKind.DATA, FrameKind.END})
_MOST_TYPED_BYTES = 2 * WINDOW_BYTES
"""Of input that waits; the holder gives a client room for half of it."""


class NearCarrier:
    """One connection of the client, as the relay sees it."""

    def __init__(self, terminal: RecordedTerminal) -> None:
        self._terminal = terminal
        self._outbox: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._lost = ""
        self._typed: deque[bytes] = deque()
        self._typed_bytes = 0
        self._is_typed = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        if self._lost:
            raise CarrierLost(self._lost)
        await self._terminal.typed(self, bytes(frame))

    async def receive(self) -> bytes:
        while not self._outbox:
            if self._lost:
                raise CarrierLost(self._lost)
            self._ready.clear()
            await self._ready.wait()
        return self._outbox.popleft()

    def put_typed(self, frame: bytes) -> None:
        """Input of the client. Raises `CarrierLost` if the client sends more than it may."""
        if self._typed_bytes + len(frame) > _MOST_TYPED_BYTES:
            raise CarrierLost("more is typed than there is room for")
        self._typed.append(frame)
        self._typed_bytes += len(frame)
        self._is_typed.set()

    async def typed(self) -> bytes:
        """The next frame with input."""
        while not self._typed:
            self._is_typed.clear()
            await self._is_typed.wait()
        frame = self._typed.popleft()
        self._typed_bytes -= len(frame)
        return frame

    def put(self, frame: bytes) -> None:
        """A frame for the client."""
        self._outbox.append(frame)
        self._ready.set()

    def lose(self, reason: str) -> None:
        """What is in the box is still received."""
        self._lost = self._lost or reason
        self._ready.set()


class RecordedTerminal:
    """One terminal, from its first connection to its end."""

    def __init__(
        self,
        order: RecordingOrder,
        key: DataKey,
        files: ChunkFiles,
        node: str,
        clock: Clock,
        on_end: Callable[[], object],
    ) -> None:
        self._files = files
        self._clock = clock
        self._on_end = on_end
        self._session = order.session
        self._near: NearCarrier | None = None
        self._far: Carrier | None = None
        self._pump: asyncio.Task[None] | None = None
        self._typist: asyncio.Task[None] | None = None
        self._held: deque[tuple[int, bytes]] = deque()
        """Frames to the client, each with the chunk that has it."""
        self._shown = 0
        """The number of the last recorded message to the client."""
        self._shown_chunk = 0
        self._waiting = asyncio.Event()
        self.recorder = Recorder(key, order, files, node, clock, self)
        self._recording = asyncio.create_task(self._record(), name="recording")

    @property
    def is_ended(self) -> bool:
        return self.recorder.is_ended

    @property
    def was_connected(self) -> bool:
        """True once it had a holder."""
        return self._pump is not None

    # Connections

    def connect(self, near: NearCarrier, far: Carrier) -> None:
        """A client, and a new connection to the holder, take the place of the ones before."""
        if self._near is not None:
            self._near.lose("the session goes on elsewhere")
        for task in (self._pump, self._typist):
            if task is not None:
                task.cancel()
        # The holder sends again what the client has not confirmed.
        self._held.clear()
        self._near, self._far = near, far
        for chunk in self.recorder.unstored():
            near.put(chunk_frame(chunk.data))
        if self.recorder.stopped:
            self.recording_stopped(self.recorder.stopped)
        self._pump = asyncio.create_task(self._pumped(far), name="recorded output")
        self._typist = asyncio.create_task(self._pass_on_typed(near, far), name="recorded input")
        for task in (self._pump, self._typist):
            task.add_done_callback(self._stop_after_a_defect)

    def _stop_after_a_defect(self, task: asyncio.Task[None]) -> None:
        """A session whose input or output stands still must not look like one that goes on."""
        if not task.cancelled() and (defect := task.exception()) is not None:
            _log.error("%s: not foreseen", task.get_name(), exc_info=defect)
            self.recorder.stop("a defect of the recorder")

    async def leave(self, near: NearCarrier) -> None:
        """The client is gone. Returns when another came, or when the terminal has ended."""
        if not self.detach(near):
            return
        until_s = self._clock.monotonic() + AWAY_S
        while self._near is None and not self.recorder.is_ended:
            if self._clock.monotonic() >= until_s:
                self.recorder.end("client_lost")
                break
            await self._ping()
            self._waiting.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PING_EVERY_S):
                    await self._waiting.wait()

    def detach(self, near: NearCarrier) -> bool:
        """The client is gone; False if another has its place already."""
        if self._near is not near:
            return False
        near.lose("the client is gone")
        if self._typist is not None:
            self._typist.cancel()
        self._near = None
        self._held.clear()
        return True

    async def abandon(self) -> None:
        """There is no terminal: leave nothing of its recording."""
        self.recorder.hand_over()
        await self.wait()
        await asyncio.to_thread(self._files.remove)

    def stop(self, reason: str) -> None:
        self.recorder.stop(reason)

    async def finish(self, reason: str) -> None:
        """End the recording; what it has is on the disk when this returns."""
        with suppress(RecordingStopped):
            await self.recorder.on_disk(self.recorder.end(reason))
        self._waiting.set()
        # Its chunks go to the server that asked.
        self.recorder.hand_over()
        await self.wait()

    async def wait(self) -> None:
        """Wait for the end of the recording."""
        await asyncio.gather(self._recording, return_exceptions=True)

    async def _ping(self) -> None:
        """The holder ends a recorded terminal whose recorder is silent."""
        if self._far is not None:
            with suppress(CarrierLost):
                await self._far.send(_HEAD.pack(FrameKind.PING, 0, 0))

    # To the holder

    async def typed(self, near: NearCarrier, frame: bytes) -> None:
        """A frame of the client or of its server.

        Input waits in a queue, since the answers of the server must not wait behind it.
        """
        if near is not self._near or self._far is None:
            raise CarrierLost("the session goes on elsewhere")
        if is_of_recording(frame):
            try:
                self.recorder.stored(*read_stored(frame))
            except (RecordingStopped, BadRecordingFrame) as problem:
                raise CarrierLost(str(problem)) from None
        elif frame[:1] and frame[0] in _CARRIED:
            near.put_typed(frame)
        else:
            await self._far.send(frame)

    async def _pass_on_typed(self, near: NearCarrier, far: Carrier) -> None:
        """Record input, and pass it on when that is on the disk."""
        try:
            while True:
                frame = await near.typed()
                await self.recorder.room()
                if self.recorder.has_end:
                    # The program has ended: it reads nothing, but its holder waits for answers.
                    frame = frame[: _HEAD.size]
                await self._record_typed(frame[_HEAD.size :])
                await far.send(frame)
        except (CarrierLost, RecordingStopped, BadMessage) as problem:
            near.lose(str(problem))

    async def _record_typed(self, payload: bytes) -> None:
        if not payload:
            return
        kind, data = _typed_event(read_message(payload))
        number = self.recorder.record(kind, data, now=True)
        await self.recorder.on_disk(number)

    # From the holder

    async def _pumped(self, far: Carrier) -> None:
        reason = "the terminal is gone"
        try:
            while True:
                self._take(bytes(await far.receive()))
        except CarrierLost:
            # A client that comes back has another connection to the same holder.
            self._far = None
        except RecordingStopped:
            return
        except BadMessage as problem:
            reason = f"the terminal sent what is no message: {problem}"
        if not self.recorder.is_ended:
            await asyncio.sleep(GRACE_S)
            self.recorder.end(reason)
            await self.recorder.on_end()
        if self._near is not None:
            self._near.lose(reason)

    def _take(self, frame: bytes) -> None:
        if not frame or frame[0] not in _CARRIED:
            if self._near is not None:
                self._near.put(frame)
            return
        if len(frame) < _HEAD.size:
            raise BadMessage("a frame is shorter than its head")
        _, number, _ = _HEAD.unpack_from(frame)
        if number > self._shown:
            kind, data = _shown_event(read_message(frame[_HEAD.size :]))
            if kind is CastKind.EXIT:
                self.recorder.record(kind, data)
                self._shown_chunk = self.recorder.end("exited")
            else:
                self._shown_chunk = self.recorder.record(kind, data)
            self._shown = number
        if self._near is not None:
            self._held.append((self._shown_chunk, frame))
            self.chunk_stored()

    # What the recorder reports

    def chunk_on_disk(self, chunk: RecordedChunk) -> None:
        if self._near is not None:
            self._near.put(chunk_frame(chunk.data))

    def chunk_stored(self) -> None:
        if self.recorder.stopped:
            return
        stored = self.recorder.stored_number
        while self._held and self._held[0][0] <= stored:
            _, frame = self._held.popleft()
            if self._near is not None:
                self._near.put(frame)
        self._waiting.set()

    def recording_stopped(self, reason: str) -> None:
        self._held.clear()
        if self._pump is not None:
            self._pump.cancel()
        if self._near is not None:
            self._near.put(stopped_frame(reason))
            self._near.lose(reason)
        self._waiting.set()

    async def _record(self) -> None:
        try:
            await self.recorder.run()
        finally:
            self._waiting.set()
            if self.recorder.is_whole:
                await asyncio.to_thread(self._files.remove)
            else:
                self._files.close()
            self._on_end()


def _typed_event(message: TerminalMessage) -> tuple[CastKind, bytes]:
    if isinstance(message, Stdin):
        return CastKind.INPUT, message.text
    if isinstance(message, Resize):
        return CastKind.RESIZE, resized(message.columns, message.rows)
    if isinstance(message, Signal):
        return CastKind.MARK, f"signal {message.name.value}".encode()
    if isinstance(message, StdinEnd):
        return CastKind.MARK, b"end of input"
    raise BadMessage("a message that is not the client's to say")


def _shown_event(message: TerminalMessage) -> tuple[CastKind, bytes]:
    if isinstance(message, Output | Errors):
        return CastKind.OUTPUT, message.text
    if isinstance(message, Exit):
        return CastKind.EXIT, b"" if message.code is None else str(message.code).encode()
    if isinstance(message, Started):
        return CastKind.MARK, f"{message.user} in step {message.step}".encode()
    raise BadMessage("a message that is not the terminal's to say")
