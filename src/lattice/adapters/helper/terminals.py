"""Terminals of jobs by the root helper beside the agent, as carriers of frames.

The server encodes and grants the request; it goes to the helper unchanged. The answer brings one
socket; its other end is the holder of the terminal. Only the helper decides who may have it, and
whether it still exists.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lattice.adapters.helper.channel import HelperChannel
from lattice.base import packet
from lattice.base.errors import (
    InternalError,
    LatticeError,
    NotFound,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.base.text import inert
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.privileged import Answer, Outcome
from lattice.wire.direct import DirectCarrier

_LARGEST_FRAME_BYTES = LARGEST_MESSAGE_BYTES + 64
_LOG_HINT = "An administrator finds the reason in the log of lattice-helper on that node."
_KINDS: dict[Outcome, type[LatticeError]] = {
    Outcome.FAILED: Unavailable,
    Outcome.UNSURE: Unavailable,
    Outcome.BUSY: Unavailable,
    Outcome.NOT_OFFERED: Unavailable,
    Outcome.ACCOUNT_REFUSED: PermissionRefused,
    Outcome.DIRECTORY_REFUSED: PermissionRefused,
    Outcome.REFUSED: PermissionRefused,
    Outcome.UNTIMELY: Unavailable,
    Outcome.BAD_QUESTION: UsageError,
    Outcome.BROKEN: InternalError,
}


class HelperTerminals:
    """Sends the server's requests to the helper."""

    def __init__(self, channel: HelperChannel) -> None:
        self._channel = channel

    @asynccontextmanager
    async def open(self, request: bytes, *, resume: bool) -> AsyncIterator[PacketCarrier]:
        """A carrier to the holder, for as long as the context lasts."""
        answer, passed = await self._ask(request)
        if answer.outcome is not Outcome.DONE or len(passed) != 1:
            packet.close_all(passed)
            raise _error(answer, resume=resume)
        carrier = PacketCarrier(socket.socket(fileno=passed[0]))
        try:
            yield carrier
        finally:
            carrier.close()

    async def _ask(self, request: bytes) -> tuple[Answer, list[int]]:
        try:
            return await self._channel.ask_written(request)
        except Unavailable:
            raise Unavailable(
                "lattice-helper on the node does not answer: no terminals in its jobs.",
                hint="An administrator starts lattice-helper on that node again.",
            ) from None
        except OSError as error:
            raise Unavailable(
                f"lattice-helper did not open a terminal: {str(error) or 'no answer in time'}.",
                hint=_LOG_HINT,
            ) from None


class PacketCarrier(DirectCarrier):
    """Frames over a packet socket, one a packet."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()
        self._reading = False

    def write(self, *parts: bytes) -> None:
        if not self.usable:
            return
        self._unsent.append(b"".join(parts))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send(self._unsent[0])
            except BlockingIOError:
                if not self.paused:
                    self._loop.add_writer(self._socket, self._flush)
                    self._on_paused()
                return
            except OSError as error:
                self._lose(f"the terminal's connection is gone: {error.strerror or error}")
                return
            self._unsent.popleft()
        if self.paused:
            self._loop.remove_writer(self._socket)
            self._on_resumed()

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        if not self._reading and self.usable:
            self._reading = True
            self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        try:
            frame = self._socket.recv(_LARGEST_FRAME_BYTES)
        except BlockingIOError:
            return
        except OSError:
            frame = b""
        if frame:
            self._on_frame(frame)
        else:
            self._lose("the terminal's holder has ended the connection")

    def close(self) -> None:
        """Close it; whoever waits gets the end."""
        self._lose("the terminal's connection is closed")

    def _lose(self, reason: str) -> None:
        if not self.usable:
            return
        self.pause_reading()
        self._loop.remove_writer(self._socket)
        self._unsent.clear()
        self._socket.close()
        self._on_lost(reason)


def _error(answer: Answer, *, resume: bool) -> LatticeError:
    if answer.outcome is Outcome.DONE:
        return InternalError("lattice-helper brought no terminal.", hint=_LOG_HINT)
    message = inert(answer.message)[:300] or f"lattice-helper says {answer.outcome.value}"
    if resume and answer.outcome in {Outcome.FAILED, Outcome.REFUSED}:
        return NotFound(message)
    return _KINDS[answer.outcome](message)
