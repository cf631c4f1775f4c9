"""A carrier of a recorded terminal: stores the recorder's chunks beside the frames of the pipe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

from lattice.access.actor import Actor
from lattice.base.clock import Clock
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.domain.allocation import Allocation
from lattice.domain.recording import ChunkHead
from lattice.domain.recording_path import RecordingPath
from lattice.domain.sealed import DataKey
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.stream import Carrier
from lattice.features.attach.model import Start
from lattice.features.attach.recording_frames import (
    RecordingFrame,
    is_of_recording,
    read_stopped,
    stored_frame,
)
from lattice.features.attach.service.recordings import RecordingEntry, Recordings
from lattice.foundation.recording_store import RecordingConflict, RecordingStore

_log = logging.getLogger(__name__)

_RETRY_S = 0.5
MOST_WAITING_BYTES = 64 * 1024 * 1024
"""Of chunks from one node that are not stored yet; a recorder has half of that at most."""


class TerminalKeys(Protocol):
    """The data keys of sensitive work."""

    async def key_of(self, allocation: Allocation) -> DataKey:
        """The key, made now if there is none. Raises `Unavailable`, `DataUnavailable`."""

    async def existing(self, ref: str) -> DataKey:
        """The key of an allocation. Raises `DataUnavailable` if there is none."""

    async def cluster(self) -> str:
        """The id of the cluster, which every sealing names."""


class RecordingEnded(Exception):
    """There is no recording any more, so no session; the text says why."""


class RecordedCarrier:
    """One connection. `run` stores chunks while it lasts."""

    def __init__(
        self,
        carrier: Carrier,
        store: RecordingStore,
        path: RecordingPath,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._carrier = carrier
        self._store = store
        self._path = path
        self._sleep = sleep
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0
        self._sending = asyncio.Lock()
        self._link: bytes | None = None

    async def send(self, frame: bytes) -> None:
        """Pass on a frame of the client. Raises `UsageError`: it can't confirm chunks."""
        if is_of_recording(frame):
            raise UsageError("A frame of that kind is not the client's to send.")
        async with self._sending:
            await self._carrier.send(frame)

    async def receive(self) -> bytes | memoryview:
        """The next frame for the client. Raises `RecordingEnded`."""
        while True:
            frame = await self._carrier.receive()
            if not is_of_recording(frame):
                return frame
            if frame[0] == RecordingFrame.CHUNK:
                self._waiting_bytes += len(frame)
                if self._waiting_bytes > MOST_WAITING_BYTES:
                    raise RecordingEnded("recording impossible: the node sends too much")
                self._chunks.put_nowait(bytes(frame[1:]))
            elif frame[0] == RecordingFrame.STOPPED:
                raise RecordingEnded(read_stopped(frame))

    async def run(self) -> NoReturn:
        """Store chunks, in order, until cancelled. Raises `CarrierLost`, `RecordingEnded`."""
        while True:
            chunk = await self._chunks.get()
            self._link = link = await self._stored(chunk)
            self._waiting_bytes -= len(chunk) + 1
            async with self._sending:
                await self._carrier.send(stored_frame(ChunkHead.parse(chunk).number, link))

    async def _stored(self, chunk: bytes) -> bytes:
        """Try until the node gives up: it knows how long the person has waited."""
        while True:
            try:
                return await self._store.put(self._path, chunk, self._link)
            except RecordingConflict as problem:
                raise RecordingEnded(f"recording impossible: {problem.message}") from None
            except Unavailable as problem:
                _log.warning("a chunk of a recording is not stored: %s", problem.message)
                await self._sleep(_RETRY_S)


UNRECORDED = "Terminals of sensitive work are recorded, and this server can't record them."


class TerminalRecording:
    """What a server needs to have terminals recorded. Without bucket and keys none opens."""

    def __init__(
        self,
        sensitive: SensitiveWork,
        recordings: Recordings,
        clock: Clock,
        store: RecordingStore | None = None,
        keys: TerminalKeys | None = None,
    ) -> None:
        self._sensitive = sensitive
        self._recordings = recordings
        self._clock = clock
        self._store = store
        self._keys = keys

    async def beginning(
        self, actor: Actor, job: Allocation, node: str, start: Start
    ) -> RecordingEntry | None:
        """The recording of a session that begins; None if the work is not sensitive.

        Raises `Unavailable` without a data key, and `PermissionRefused`.
        """
        if not self._sensitive.covers(job):
            return None
        if self._keys is None or self._store is None:
            raise PermissionRefused(UNRECORDED)
        # The node gets the key from a server with what it learns of the job.
        await self._keys.key_of(job)
        return RecordingEntry(
            cluster=await self._keys.cluster(),
            allocation=job.ref,
            session=start.session,
            user=job.user,
            subject=actor.sub,
            role=actor.role.value,
            tenant=job.tenant or "",
            account=job.account,
            node=node,
            begun=self._clock.now(),
            rows=start.rows,
            columns=start.columns,
            terminal=start.terminal,
            command=" ".join(start.command),
        )

    def lacks(self, job: Allocation, *, recorded: bool) -> bool:
        """True if a session has to be recorded and is not: the work became sensitive later."""
        return self._sensitive.covers(job) and not recorded

    async def of(self, session: str) -> RecordingEntry:
        """The recording of a session that goes on. Raises `NotFound`."""
        return await self._recordings.of(session)

    def carrier(self, carrier: Carrier, recording: RecordingEntry) -> RecordedCarrier:
        """The carrier of a recorded terminal over one to its node."""
        if self._store is None:
            raise PermissionRefused(UNRECORDED)
        return RecordedCarrier(carrier, self._store, recording.path)
