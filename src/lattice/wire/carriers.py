"""gRPC streams as carriers of frames, and the relay between two of them.

The messages are `lattice.v1.Frame`. A carrier at an end wraps and unwraps them. The relay passes
the bytes on unread, one message at a time. So it holds no more than gRPC itself, and a slow reader
slows the writer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from lattice.domain.stream import Carrier, CarrierLost
from lattice.wire.dial_reasons import call_failure
from lattice.wire.direct import DirectCarrier, relay_directly
from lattice.wire.v1.link_pb2 import Frame, StreamOpening

EOF: Any = aio.EOF  # type: ignore[attr-defined]
"""The result of a read at the end; the stubs of grpc lack it."""

STREAM_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 256 * 1024),
    ("grpc.max_send_message_length", 256 * 1024),
)


_BODY_TAG = 0x12
"""Field 2 of `Frame`, length-delimited."""
_LONGEST_PREFIX = 5
_CORE = "Internal error from Core"
"""The text of grpc when a connection broke under a stream."""


_LOST = (aio.AioRpcError, aio.BaseError, asyncio.InvalidStateError)
"""The errors of grpc for a stream that can't be used any more."""


class CarriedStream(Protocol):
    """Either side of a gRPC stream with messages as bytes."""

    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> Any: ...


class GrpcCarrier:
    """Frames over a stream of bytes. The relay uses the raw methods."""

    def __init__(self, stream: CarriedStream, *, is_probed: bool = False) -> None:
        """`is_probed`: gRPC finds out by itself if the connection or the other process is dead."""
        self._stream = stream
        self.is_probed = is_probed

    async def send(self, frame: bytes) -> None:
        await self.send_raw(wrapped(frame))

    async def receive(self) -> memoryview:
        return unwrapped(await self.receive_raw())

    async def send_raw(self, message: bytes) -> None:
        try:
            await self._stream.write(message)
        except _LOST as error:
            raise CarrierLost(_reason(error)) from None

    async def receive_raw(self) -> bytes:
        try:
            message = await self._stream.read()
        except _LOST as error:
            raise CarrierLost(_reason(error)) from None
        if message is EOF or not isinstance(message, bytes):
            raise CarrierLost("the other side has ended the stream")
        return message

    async def open_with(self, opening: StreamOpening) -> None:
        """Send the first message, from the side that dialled."""
        await self.send_raw(Frame(open=opening).SerializeToString())

    async def opening(self) -> StreamOpening:
        """Receive the first message, at the side that was dialled."""
        return read_frame(await self.receive_raw()).open


async def relay(one: Carrier, other: Carrier) -> None:
    """Pass on everything, both ways, until either side is lost. Does not raise for that."""
    if isinstance(one, DirectCarrier) and isinstance(other, DirectCarrier):
        await relay_directly(one, other)
        return
    tasks = [asyncio.ensure_future(_pass(*ends)) for ends in ((one, other), (other, one))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(source: Carrier, target: Carrier) -> None:
    if isinstance(source, GrpcCarrier) and isinstance(target, GrpcCarrier):
        while True:
            await target.send_raw(await source.receive_raw())
    while True:
        await target.send(bytes(await source.receive()))


def wrapped(body: bytes) -> bytes:
    """`Frame(body=body)` as bytes, with one copy of the body instead of three."""
    size, prefix = len(body), bytearray((_BODY_TAG,))
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return b"".join((prefix, body))


def unwrapped(message: bytes) -> memoryview:
    """The body of a frame, without a copy. Raises `CarrierLost` for anything else."""
    if message[:1] == _BODY_TAG.to_bytes():
        size = 0
        for at, byte in enumerate(message[1:_LONGEST_PREFIX], 1):
            size |= (byte & 0x7F) << (7 * (at - 1))
            if byte < 0x80:
                if size == len(message) - at - 1:
                    return memoryview(message)[at + 1 :]
                break
    # Another order of fields, or no frame at all: parse it in full.
    return memoryview(read_frame(message).body)


def read_frame(message: bytes) -> Frame:
    """Parse a message of the wire. Raises `CarrierLost` for an invalid one."""
    try:
        return Frame.FromString(message)
    except DecodeError:
        raise CarrierLost("what came is no frame") from None


def _reason(error: Exception) -> str:
    if isinstance(error, aio.AioRpcError):
        code = error.code()
        if code is grpc.StatusCode.UNAVAILABLE or error.details() == _CORE:
            return "the connection was lost"
        return f"the other side ended it: {call_failure(code, error.details())}"
    return "the stream is closed"
