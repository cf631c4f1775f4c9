"""The agent's connections: each dial uses the current identity.

Calls share the connection of the link: a connection of their own would cost each node a handshake,
and a server its memory. So do streams with few small messages, and they use the standby connection
too. Bulk transfers do not, since a link must not wait behind them.

Other streams have a lane each (`lattice.wire.lane`), or use gRPC if the replica offers none. gRPC
would share one connection between channels of the same kind. A terminal must not wait behind a bulk
transfer, so there are two connections. They are closed after 90 s without use. New connections use
a renewed identity; open ones stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol

import grpc
from grpc import aio

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.stream import StreamKind
from lattice.features.link.model import PROBE_OPTIONS
from lattice.features.link.node.lanes import LaneCredentials, LaneDialler, LaneUnreachable
from lattice.wire.carriers import STREAM_OPTIONS, GrpcCarrier
from lattice.wire.lane import TlsLane
from lattice.wire.status import error_of
from lattice.wire.v1.link_pb2 import BULK, INTERACTIVE, Ticket

_IDLE_S = 90.0
"""Longer than the time between two chunks of a log, so that a busy node keeps its connection."""
_LIGHT = frozenset({StreamKind.METRICS, StreamKind.FACTS, StreamKind.STACKS})
"""Streams with few small messages. A handshake would cost more than all of these."""
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # A node receives little. The bandwidth probe costs a tenth of the processor time of a sample.
    ("grpc.http2.bdp_probe", 0),
    *STREAM_OPTIONS,
)


class DialIdentity(LaneCredentials, Protocol):
    """The node's identity when it dials, and what the server must prove."""

    def channel_credentials(self) -> grpc.ChannelCredentials: ...

    def channel_options(self) -> Sequence[tuple[str, Any]]: ...


class LinkChannel:
    """The connection of a link, or one that stands by for it. Calls and streams share it.

    It closes once its owner has closed it and they have ended.
    """

    def __init__(
        self,
        address: str,
        channel: aio.Channel,
        on_close: Callable[[LinkChannel], None] = lambda _: None,
    ) -> None:
        self.address = address
        self.channel = channel
        self.has_link = False
        """True from when a link is opened on it."""
        self._on_close = on_close
        self._calls = 0
        self._closing = False

    @property
    def is_ready(self) -> bool:
        """True if it is connected now."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    @asynccontextmanager
    async def calls(self) -> AsyncIterator[aio.Channel]:
        """The connection, for calls. Raises `LatticeError` for one that fails."""
        if self._closing:
            raise _not_linked()
        self._calls += 1
        try:
            yield self.channel
        except aio.AioRpcError as error:
            raise error_of(self.address, error) from None
        finally:
            self._calls -= 1
            await self._close_if_unused()

    async def close(self) -> None:
        """The link has ended. Calls end by themselves: gRPC would cancel whoever waits for them."""
        self._closing = True
        self._on_close(self)
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._closing and not self._calls:
            await self.channel.close(None)


class _Lane:
    def __init__(self, channel: aio.Channel, generation: int) -> None:
        self.channel = channel
        self.generation = generation
        self.users = 0
        self.closing: asyncio.TimerHandle | None = None


class Dialling:
    """Makes connections to replicas."""

    def __init__(self, identity: DialIdentity, clock: Clock) -> None:
        self._identity = identity
        self._tls = LaneDialler(identity, clock)
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._links: dict[str, LinkChannel] = {}
        """The newest by address."""
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def generation(self) -> int:
        """Rises with every renewal of the identity."""
        return self._identity.generation

    def link_channel(self, address: str) -> LinkChannel:
        """A new connection for a link; the caller closes it. gRPC probes it while it has a call."""
        channel = self._dialled(address, *PROBE_OPTIONS)
        made = self._links[address] = LinkChannel(address, channel, self._forget)
        return made

    def _forget(self, link: LinkChannel) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]

    def _dialled(self, address: str, *more: tuple[str, Any]) -> aio.Channel:
        return aio.secure_channel(
            address,
            self._identity.channel_credentials(),
            options=[*self._identity.channel_options(), *_OPTIONS, *more],
        )

    @asynccontextmanager
    async def carrier(self, ticket: Ticket) -> AsyncIterator[GrpcCarrier | TlsLane]:
        """A carrier to the replica that a ticket names."""
        link = self._links.get(ticket.dial)
        if link is not None and _may_share(ticket, link) and link.is_ready:
            async with link.calls() as channel:
                call = _carry(channel)
                try:
                    yield GrpcCarrier(call, is_probed=True)
                finally:
                    call.cancel()
            return
        if ticket.lane_dial:
            with suppress(LaneUnreachable):
                is_interactive = ticket.lane == INTERACTIVE
                made = await self._tls.open(ticket.lane_dial, with_spare=is_interactive)
                try:
                    yield made
                finally:
                    made.close()
                return
        async with self._grpc_carrier(ticket.dial, ticket.lane) as carrier:
            yield carrier

    @asynccontextmanager
    async def _grpc_carrier(self, address: str, lane: int) -> AsyncIterator[GrpcCarrier]:
        async with self.lane(address, lane) as channel:
            call = _carry(channel)
            try:
                yield GrpcCarrier(call, is_probed=True)
            finally:
                if call.done() and await call.code() is grpc.StatusCode.UNAVAILABLE:
                    self.give_up(address, lane)
                call.cancel()

    @asynccontextmanager
    async def lane(self, address: str, lane: int) -> AsyncIterator[aio.Channel]:
        """The lane's connection; it stays open for 90 s after the last use."""
        used = self._lane(address, lane)
        used.users += 1
        try:
            yield used.channel
        finally:
            used.users -= 1
            if not used.users:
                loop = asyncio.get_running_loop()
                used.closing = loop.call_later(_IDLE_S, self._drop, (address, lane), used)

    def give_up(self, address: str, lane: int) -> None:
        """Drop a lane that does not answer. gRPC would back off; a new connection dials at once."""
        self._lanes.pop((address, lane), None)

    def _lane(self, address: str, lane: int) -> _Lane:
        key, generation = (address, lane), self._identity.generation
        held = self._lanes.get(key)
        if held is None or held.generation != generation:
            if held is not None and not held.users:
                self._drop(key, held)
            held = self._lanes[key] = _Lane(self._dialled(address), generation)
        if held.closing:
            held.closing.cancel()
            held.closing = None
        return held

    def _drop(self, key: tuple[str, int], lane: _Lane) -> None:
        if self._lanes.get(key) is lane:
            del self._lanes[key]
        task = asyncio.ensure_future(lane.channel.close(None))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        await self._tls.aclose()
        for key, lane in list(self._lanes.items()):
            self._drop(key, lane)
        await asyncio.gather(*self._closing, return_exceptions=True)


def _may_share(ticket: Ticket, link: LinkChannel) -> bool:
    """Whether a stream may use this connection. A link must not wait behind a bulk transfer."""
    return ticket.kind in _LIGHT or (
        ticket.lane == BULK and not ticket.lane_dial and not link.has_link
    )


def _carry(channel: aio.Channel) -> Any:
    # Messages stay bytes. grpc works without serialisers, but its type stubs require them.
    dial: Any = channel.stream_stream
    return dial("/lattice.v1.LinkService/Carry")()


class Linked(Protocol):
    """A link, as far as calls need it."""

    @property
    def address(self) -> str: ...

    def calls(self) -> AbstractAsyncContextManager[aio.Channel]: ...


@asynccontextmanager
async def linked_calls(link: Linked | None) -> AsyncIterator[aio.Channel]:
    """The connection of this link, for calls. Raises `LatticeError` for one that fails."""
    async with _present(link).calls() as channel:
        yield channel


@asynccontextmanager
async def bulk_channel(dialling: Dialling, link: Linked | None) -> AsyncIterator[aio.Channel]:
    """A connection for large transfers to the replica of this link. Raises `LatticeError`."""
    address = _present(link).address
    async with dialling.lane(address, BULK) as channel:
        try:
            yield channel
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                dialling.give_up(address, BULK)
            raise error_of(address, error) from None


def _present(link: Linked | None) -> Linked:
    if link is None:
        raise _not_linked()
    return link


def _not_linked() -> Unavailable:
    return Unavailable("This node is not linked to any server.", hint="It dials again.")
