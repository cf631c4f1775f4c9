"""Terminals of jobs by the root helper beside the agent, as carriers of frames.

The server encodes and grants the request; it goes to the helper unchanged. The answer brings one
socket; its other end is the holder of the terminal. Only the helper decides who may have it, and
whether it still exists.
"""

from __future__ import annotations

import asyncio
import socket
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
from lattice.domain.stream import CarrierLost

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


class PacketCarrier:
    """Frames over a packet socket, one a packet. Only one reader may wait at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[bytes] | None = None
        self._listening = False
        self._closed = False

    async def send(self, frame: bytes) -> None:
        while not self._closed:
            try:
                self._socket.send(frame)
            except BlockingIOError:
                await self._room()
            except OSError as error:
                raise CarrierLost(_loss_reason(error)) from None
            else:
                return
        raise CarrierLost("the terminal's connection is closed")

    async def receive(self) -> bytes:
        if self._closed:
            raise CarrierLost("the terminal's connection is closed")
        frame = self._read()
        if frame is None:
            self._waiting = self._loop.create_future()
            if not self._listening:
                # The reader stays registered while frames are awaited: no system call for each key.
                self._loop.add_reader(self._socket, self._arrived)
                self._listening = True
            try:
                frame = await self._waiting
            finally:
                self._waiting = None
        if not frame:
            raise CarrierLost("the terminal's holder has ended the connection")
        return frame

    def close(self) -> None:
        """Close it; a waiting reader gets the end."""
        if self._closed:
            return
        self._closed = True
        if self._listening:
            self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(b"")
        self._socket.close()

    def _arrived(self) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            self._loop.remove_reader(self._socket)
            self._listening = False
            return
        frame = self._read()
        if frame is not None:
            waiting.set_result(frame)

    def _read(self) -> bytes | None:
        """The next packet, empty at the end; None if there is none yet."""
        try:
            return self._socket.recv(_LARGEST_FRAME_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    async def _room(self) -> None:
        ready = asyncio.Event()
        self._loop.add_writer(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            if not self._closed:
                self._loop.remove_writer(self._socket)


def _error(answer: Answer, *, resume: bool) -> LatticeError:
    if answer.outcome is Outcome.DONE:
        return InternalError("lattice-helper brought no terminal.", hint=_LOG_HINT)
    message = inert(answer.message)[:300] or f"lattice-helper says {answer.outcome.value}"
    if resume and answer.outcome in {Outcome.FAILED, Outcome.REFUSED}:
        return NotFound(message)
    return _KINDS[answer.outcome](message)


def _loss_reason(error: OSError) -> str:
    return f"the terminal's connection is gone: {error.strerror or error}"
