"""A lane: the frames of one stream over plain TLS, between an agent and a replica.

A frame has its length before it, in four bytes. The first frame of the side that dialled opens the
stream, as the first message of a gRPC stream does. All others are frames of a pipe. A frame that is
too large ends the connection.

A lane is a carrier, and a direct one: its sink gets each frame in the callback of its arrival.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any, cast

from lattice.wire.carriers import read_frame
from lattice.wire.direct import DirectCarrier
from lattice.wire.v1.link_pb2 import Frame, StreamOpening

LARGEST_FRAME_BYTES = 256 * 1024
_SIZE = struct.Struct("!I")
_BUFFER_BYTES = 16 * 1024
"""One TLS record. A larger frame gets a larger buffer, which is released afterwards."""
_LARGE_BYTES = 16 * 1024
"""From here on a payload is not copied to stand behind its head."""
_UNSENT_BYTES = 512 * 1024
"""Above this, writing is paused."""


@dataclass(frozen=True, slots=True)
class LaneIdentity:
    """What one side shows, and the authorities that it trusts. All in PEM."""

    key: bytes = field(repr=False)
    certificate: bytes
    authorities: bytes

    def context(self, *, server: bool) -> ssl.SSLContext:
        """A context that requires a certificate of these authorities from the other side."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(cadata=self.authorities.decode())
        if server:
            # Nobody resumes a session: a ticket would only cost a signature.
            made.num_tickets = 0
        # OpenSSL reads keys from files alone; this one exists in memory only.
        file = os.memfd_create("lattice-lane", os.MFD_CLOEXEC)
        try:
            os.write(file, self.key + b"\n" + self.certificate)
            made.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        return made


class TlsLane(asyncio.BufferedProtocol, DirectCarrier):
    """One end of a lane, from the finished handshake on."""

    def __init__(self) -> None:
        super().__init__()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._begin = self._end = 0
        """The bytes of the buffer that are not handled yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the size is ours to choose
        if self._end == len(self._buffer):
            self._make_room()
        return memoryview(self._buffer)[self._end :]

    def _make_room(self) -> None:
        held = self._end - self._begin
        wanted = max(_BUFFER_BYTES, held + 1)
        if held >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._buffer, self._begin)
            wanted = max(wanted, _SIZE.size + size)
        # asyncio may hold a view of the old one, which therefore can't be resized.
        buffer = bytearray(wanted)
        buffer[:held] = self._buffer[self._begin : self._end]
        self._buffer, self._begin, self._end = buffer, 0, held

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        while self._end - self._begin >= _SIZE.size and self.usable:
            (size,) = _SIZE.unpack_from(self._buffer, self._begin)
            if size > LARGEST_FRAME_BYTES:
                self._on_lost("a frame is too large")
                self.abort()
                return
            begin = self._begin + _SIZE.size
            if self._end - begin < size:
                return
            self._begin = begin + size
            self._on_frame(bytes(memoryview(self._buffer)[begin : begin + size]))
        if self._begin == self._end:
            # Most lanes are quiet most of the time, and then need no buffer.
            self._buffer, self._begin, self._end = bytearray(), 0, 0

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it says no more
        self._on_lost("the connection was lost")

    def pause_writing(self) -> None:
        self._on_paused()

    def resume_writing(self) -> None:
        self._on_resumed()

    def write(self, *parts: bytes) -> None:
        if self._transport is None or not self.usable:
            return
        size = _SIZE.pack(sum(map(len, parts)))
        if len(parts[-1]) < _LARGE_BYTES:
            self._transport.write(b"".join((size, *parts)))
        else:
            self._transport.writelines((b"".join((size, *parts[:-1])), parts[-1]))

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    async def open_with(self, opening: StreamOpening) -> None:
        """Send the first frame, from the side that dialled."""
        await self.send(Frame(open=opening).SerializeToString())

    async def opening(self) -> StreamOpening:
        """Receive the first frame, at the side that was dialled."""
        return read_frame(await self.receive()).open

    def peer_certificate(self) -> bytes:
        """The other side's certificate in PEM; empty if it showed none."""
        found: Any = self._transport and self._transport.get_extra_info("ssl_object")
        der = found.getpeercert(binary_form=True) if found else None
        return ssl.DER_cert_to_PEM_cert(der).encode() if der else b""

    def peer_address(self) -> str:
        """For logs."""
        found: Any = self._transport and self._transport.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if found else ""

    def close(self) -> None:
        """Close after everything was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
