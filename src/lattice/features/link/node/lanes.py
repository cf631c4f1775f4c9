"""The agent's lanes: plain TLS to a replica, dialled for each stream. One spare is kept ready.

A handshake costs a person who attaches some milliseconds. So after an interactive stream began, the
next lane to the same replica is dialled in advance. It is closed after five minutes without use.

If a dial fails, that stream uses gRPC. If the port is closed, so do all streams for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from typing import Protocol

from lattice.base.address import Address
from lattice.base.clock import Clock
from lattice.wire.lane import LaneIdentity, TlsLane

_log = logging.getLogger(__name__)

_DIAL_S = 3.0
_CLOSED_S = 60.0
_SPARE_S = 300.0
_SPARE_AFTER_S = 0.3
"""The spare must not compete with the stream that was just opened."""
_FAILURES = (OSError, TimeoutError, ValueError)
"""What a dial may raise. An error of TLS is an `OSError`."""
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class LaneUnreachable(Exception):
    """The port of lanes can't be used there: use gRPC."""


class LaneCredentials(Protocol):
    """The node's identity when it dials a lane."""

    @property
    def generation(self) -> int:
        """Rises with every renewal of the identity."""

    def lane_identity(self) -> LaneIdentity: ...

    def server_name(self) -> str:
        """The name that the replica must prove."""


class LaneDialler:
    """Makes lanes to replicas."""

    def __init__(self, credentials: LaneCredentials, clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock
        self._context: tuple[int, ssl.SSLContext] | None = None
        self._closed_until: dict[str, float] = {}
        self._spare: tuple[str, int, TlsLane] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None

    async def open(self, address: str, *, with_spare: bool) -> TlsLane:
        """A lane that nobody uses; the caller closes it. Raises `LaneUnreachable`."""
        now_s = self._clock.monotonic()
        if now_s < self._closed_until.get(address, 0.0):
            raise LaneUnreachable
        lane = self._take_spare(address)
        if lane is None:
            try:
                lane = await self._dial(address)
            except _FAILURES as error:
                is_closed = isinstance(error, ConnectionRefusedError | TimeoutError | ValueError)
                if is_closed:
                    self._closed_until[address] = self._clock.monotonic() + _CLOSED_S
                _log.warning("no lane to %s, gRPC is used: %s", address, error or "no answer")
                raise LaneUnreachable from None
        if with_spare:
            self._plan_spare(address)
        return lane

    async def _dial(self, address: str) -> TlsLane:
        where = Address.parse(address)
        async with asyncio.timeout(_DIAL_S):
            transport, lane = await asyncio.get_running_loop().create_connection(
                TlsLane,
                where.host,
                where.port,
                ssl=self._current_context(),
                server_hostname=self._credentials.server_name(),
            )
        connection = transport.get_extra_info("socket")
        for level, option, value in _KEEPALIVE:
            with suppress(OSError):
                connection.setsockopt(level, option, value)
        return lane

    def _current_context(self) -> ssl.SSLContext:
        generation = self._credentials.generation
        if self._context is None or self._context[0] != generation:
            context = self._credentials.lane_identity().context(server=False)
            self._context = (generation, context)
        return self._context[1]

    def _take_spare(self, address: str) -> TlsLane | None:
        if self._spare is None or self._spare[0] != address:
            return None
        (_, generation, lane), self._spare = self._spare, None
        if lane.usable and generation == self._credentials.generation:
            return lane
        lane.close()
        return None

    def _plan_spare(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(_SPARE_AFTER_S, self._prepare, address)

    def _prepare(self, address: str) -> None:
        if self._dialling is None or self._dialling.done():
            self._dialling = asyncio.ensure_future(self._prepared(address))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SPARE_S, self._drop_spare)

    async def _prepared(self, address: str) -> None:
        if self._spare is not None and self._spare[0] == address and self._spare[2].usable:
            return
        generation = self._credentials.generation
        try:
            lane = await self._dial(address)
        except _FAILURES:
            return  # the next stream dials for itself
        self._drop_spare()
        self._spare = (address, generation, lane)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare[2].close()
            self._spare = None

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)
        self._drop_spare()
