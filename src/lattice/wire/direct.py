"""Carriers without tasks: a sink gets each frame in the callback of its arrival.

A task between a connection and what handles its frames costs two turns of the event loop for each
frame. Without a sink a direct carrier works as any other, with `send` and `receive`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Protocol

from lattice.domain.stream import CarrierLost

_UNREAD_BYTES = 512 * 1024
"""Above this, reading pauses until somebody receives."""


class FrameSink(Protocol):
    """Handles what a connection brings. Its methods must not raise."""

    def received(self, frame: bytes) -> None:
        """A frame has come."""

    def lost(self, reason: str) -> None:
        """The connection is lost. Called once."""

    def resumed(self) -> None:
        """Writing is no longer paused."""


class DirectCarrier(ABC):
    """The port `Carrier`, with or without a sink. A connection calls the methods with `_on`."""

    def __init__(self) -> None:
        self.paused = False
        """True while the other side is slow: then write no more."""
        self._sink: FrameSink | None = None
        self._frames: deque[bytes] = deque()
        self._unread_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._lost = ""

    @property
    def usable(self) -> bool:
        """False once the connection is lost."""
        return not self._lost

    def attach(self, sink: FrameSink) -> None:
        """Pass all frames to this sink, first those that nobody received."""
        self._sink = sink
        while self._frames:
            sink.received(self._frames.popleft())
        self._unread_bytes = 0
        if self._lost:
            sink.lost(self._lost)
        else:
            self.resume_reading()

    def detach(self) -> None:
        """Keep frames for `receive` again."""
        self._sink = None

    @abstractmethod
    def write(self, *parts: bytes) -> None:
        """Send one frame, which is the parts in order. Never waits; does nothing once lost."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Take no more frames for now."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Take frames again."""

    async def send(self, frame: bytes) -> None:
        """Send a frame; waits while the other side is slow. Raises `CarrierLost`."""
        self._check()
        self.write(frame)
        self._check()
        while self.paused and not self._lost:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def receive(self) -> bytes:
        """The next frame. Raises `CarrierLost`."""
        while not self._frames:
            self._check()
            self.resume_reading()
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        frame = self._frames.popleft()
        self._unread_bytes -= len(frame)
        return frame

    def _on_frame(self, frame: bytes) -> None:
        if self._sink is not None:
            self._sink.received(frame)
            return
        self._frames.append(frame)
        self._unread_bytes += len(frame)
        if self._unread_bytes > _UNREAD_BYTES:
            self.pause_reading()
        _wake(self._arrival)

    def _on_paused(self) -> None:
        self.paused = True

    def _on_resumed(self) -> None:
        self.paused = False
        _wake(self._room)
        if self._sink is not None:
            self._sink.resumed()

    def _on_lost(self, reason: str) -> None:
        if self._lost:
            return
        self._lost = reason
        _wake(self._arrival)
        _wake(self._room)
        if self._sink is not None:
            self._sink.lost(reason)

    def _check(self) -> None:
        if self._lost:
            raise CarrierLost(self._lost)


async def relay_directly(one: DirectCarrier, other: DirectCarrier) -> None:
    """Pass on everything, both ways, until either side is lost."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        one.attach(_RelaySink(one, other, ended))
        other.attach(_RelaySink(other, one, ended))
        await ended
    finally:
        one.detach()
        other.detach()


class _RelaySink:
    """Writes the frames of one side to the other. A slow side stops reading from the other."""

    def __init__(
        self, source: DirectCarrier, target: DirectCarrier, ended: asyncio.Future[None]
    ) -> None:
        self._source = source
        self._target = target
        self._ended = ended

    def received(self, frame: bytes) -> None:
        self._target.write(frame)
        if self._target.paused:
            self._source.pause_reading()

    def lost(self, reason: str) -> None:  # noqa: ARG002 - either reason ends both
        _wake(self._ended)

    def resumed(self) -> None:
        self._target.resume_reading()


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
