"""A caller's line: frames of a pipe and control words, on one connection, in order.

Frames are for the other end and pass unread; words are text between caller and server. Over gRPC
the two are fields of one message. Over a WebSocket they are its binary and text messages.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from lattice.domain.stream import CarrierLost
from lattice.wire.carriers import GrpcCarrier, read_frame, wrapped
from lattice.wire.v1.link_pb2 import Frame

ORDERLY = 1000


class LineClosed(CarrierLost):
    """The caller is gone. `orderly` if it closed the line and will not come back."""

    def __init__(self, why: str, *, orderly: bool = False) -> None:
        super().__init__(why)
        self.orderly = orderly


class TerminalLine(Protocol):
    """One connection of a caller. A sender waits while the caller reads slowly."""

    async def receive(self) -> bytes | str:
        """The next frame (bytes) or word (text). Raises `LineClosed`."""

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises `LineClosed`."""

    async def send_word(self, word: str) -> None:
        """Send a word. Raises `LineClosed`."""

    async def close(self, code: int, reason: str) -> None:
        """Nothing more follows; safe if the caller is gone."""


class GrpcLine:
    """The server's side of a stream of `lattice.v1.Frame`; `first` is a word already read."""

    def __init__(self, carrier: GrpcCarrier, first: str = "") -> None:
        self._carrier = carrier
        self._first = first
        self._turn = asyncio.Lock()

    async def receive(self) -> bytes | str:
        if self._first:
            first, self._first = self._first, ""
            return first
        try:
            message = await self._carrier.receive_raw()
        except CarrierLost as lost:
            raise LineClosed(str(lost)) from None
        frame = read_frame(message)
        return frame.word or frame.body

    async def send(self, frame: bytes) -> None:
        await self._send(wrapped(frame))

    async def send_word(self, word: str) -> None:
        await self._send(Frame(word=word).SerializeToString())

    async def close(self, code: int, reason: str) -> None:
        """Nothing to do: the end of the rpc closes the line."""

    async def _send(self, message: bytes) -> None:
        # gRPC takes one message at a time.
        async with self._turn:
            try:
                await self._carrier.send_raw(message)
            except CarrierLost as lost:
                raise LineClosed(str(lost)) from None
