"""The listener for lanes: agents dial it with a ticket, over TLS with certificates of both sides.

A lane has the permission of the rpc `Carry`, which does the same over gRPC. The certificate is
checked when the lane is made and again when it is opened: an agent keeps a spare one for minutes.
A connection counts from `accept` on, also one that never finishes its handshake.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lattice.adapters.pki.replica import ReplicaIdentity
from lattice.base.address import Address
from lattice.base.errors import ConfigurationError, LatticeError
from lattice.domain.peer import PeerIdentity
from lattice.domain.stream import CarrierLost
from lattice.features.link.service.broker import NodeStreamBroker
from lattice.foundation.foundation import Foundation
from lattice.server.config.api_section import ApiSection
from lattice.server.listeners.connections import (
    AcceptingServer,
    ConnectionLimits,
    Connections,
    CountedListener,
    fitting,
)
from lattice.server.tls import ReloadingContext
from lattice.wire.lane import TlsLane
from lattice.wire.peerguard import PeerGuard
from lattice.wire.v1.link_pb2 import StreamOpening

RPC = "lattice.v1.LinkService/Carry"
LIMITS = ConnectionLimits(20_000, 4096)
MOST_SPARE = 2
"""Lanes of one node that are not opened yet; more close the oldest."""
_SPARE_S = 600.0
"""Twice as long as an agent keeps one."""
_HANDSHAKE_S = 10.0
_CLOSE_S = 1.0


class LaneServer:
    """Serves lanes: each is admitted, opened with its ticket, and closed when it is not needed."""

    def __init__(
        self,
        guard: PeerGuard,
        arrived: Callable[[PeerIdentity, StreamOpening, TlsLane], Awaitable[None]],
        on_defect: Callable[[str, BaseException], None],
    ) -> None:
        """`arrived` returns when nobody needs the stream any more."""
        self._guard = guard
        self._arrived = arrived
        self._on_defect = on_defect
        self._serving: set[asyncio.Task[None]] = set()
        self._spare: dict[str, list[TlsLane]] = {}

    @property
    def open(self) -> int:
        """The number of lanes, spare ones included."""
        return len(self._serving)

    def new_lane(self) -> TlsLane:
        """The protocol of one accepted connection."""
        return _ServedLane(self._begin)

    def _begin(self, lane: TlsLane) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(lane), name="lane")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, lane: TlsLane) -> None:
        try:
            certificate, who = lane.peer_certificate(), lane.peer_address()
            peer = await self._guard.admit_certificate(RPC, certificate, who)
            opening = await self._opening(peer.name, lane)
            await self._guard.admit_certificate(RPC, certificate, who)
            await self._arrived(peer, opening, lane)
        except (LatticeError, CarrierLost, TimeoutError):
            pass  # the guard has logged a refusal; the agent dials again
        except Exception as defect:  # noqa: BLE001 - one lane's defect is not the server's end
            self._on_defect(RPC, defect)
        finally:
            lane.close()

    async def _opening(self, node: str, lane: TlsLane) -> StreamOpening:
        spare = self._spare.setdefault(node, [])
        spare.append(lane)
        if len(spare) > MOST_SPARE:
            spare[0].close()
        try:
            async with asyncio.timeout(_SPARE_S):
                return await lane.opening()
        finally:
            spare.remove(lane)
            if not spare and self._spare.get(node) is spare:
                del self._spare[node]

    async def aclose(self) -> None:
        """Close every lane."""
        tasks = tuple(self._serving)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)


class _ServedLane(TlsLane):
    """A lane that reports itself after its handshake."""

    def __init__(self, begin: Callable[[TlsLane], None]) -> None:
        super().__init__()
        self._begun = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._begun(self)


@asynccontextmanager
async def lane_listener(
    address: Address,
    lanes: LaneServer,
    context: Callable[[], ssl.SSLContext],
    connections: Connections,
) -> AsyncIterator[int]:
    """Serve lanes until the context ends; yields the port. Raises `ConfigurationError`.

    `context` returns the TLS context for the next connection.
    """
    try:
        listener = CountedListener(address, connections)
    except OSError as error:
        raise ConfigurationError(
            f"{address} can't be listened on: {error.strerror or error}.",
            hint="Change api.lane_listen, or stop what listens there.",
        ) from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = AcceptingServer(listener, lanes.new_lane, ReloadingContext(context), _HANDSHAKE_S)
    try:
        yield listener.getsockname()[1]
    finally:
        server.close()
        await lanes.aclose()


@asynccontextmanager
async def offered_lanes(
    api: ApiSection,
    guard: PeerGuard,
    desk: NodeStreamBroker,
    identity: ReplicaIdentity,
    foundation: Foundation,
) -> AsyncIterator[None]:
    """Serve lanes, and name their address in tickets. Raises `ConfigurationError`."""
    lanes = LaneServer(guard, desk.arrived, foundation.journal.defect)
    connections = Connections(fitting(LIMITS, api.max_connections))
    foundation.own_metrics.show(lambda: {"lanes_open": lanes.open})
    foundation.own_metrics.watch(lambda: {"lanes_refused_total": connections.refused_total})
    async with lane_listener(api.lane_listen, lanes, identity.lane_context, connections) as port:
        desk.lane_address = str(api.lane_address(port))
        foundation.log.info(
            "lanes are served", at=str(api.lane_listen), reached_at=desk.lane_address
        )
        try:
            yield
        finally:
            desk.lane_address = ""
