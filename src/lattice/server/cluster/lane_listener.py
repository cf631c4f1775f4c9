"""The listener for lanes: agents dial it with a ticket, over TLS with certificates of both sides.

A lane has the permission of the rpc `Carry`, which does the same over gRPC. The certificate is
checked when the lane is made and again when it is opened: an agent keeps a spare one for minutes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lattice.base.address import Address
from lattice.base.errors import ConfigurationError, LatticeError
from lattice.domain.peer import PeerIdentity
from lattice.domain.stream import CarrierLost
from lattice.server.tls import ReloadingContext
from lattice.wire.lane import TlsLane
from lattice.wire.peerguard import PeerGuard
from lattice.wire.v1.link_pb2 import StreamOpening

RPC = "lattice.v1.LinkService/Carry"
MOST_LANES = 20_000
MOST_SPARE = 2
"""Lanes of one node that are not opened yet; more close the oldest."""
_HANDSHAKE_S = 10.0
_BACKLOG = 1024
_CLOSE_S = 1.0


class LaneServer:
    """Serves lanes: each is admitted, opened with its ticket, and closed when it is not needed."""

    def __init__(
        self,
        guard: PeerGuard,
        arrived: Callable[[PeerIdentity, StreamOpening, TlsLane], Awaitable[None]],
        on_defect: Callable[[str, BaseException], None],
        *,
        most: int = MOST_LANES,
    ) -> None:
        """`arrived` returns when nobody needs the stream any more."""
        self._guard = guard
        self._arrived = arrived
        self._on_defect = on_defect
        self._most = most
        self._serving: dict[asyncio.Task[None], TlsLane] = {}
        self._spare: dict[str, list[TlsLane]] = {}
        self.refused_total = 0
        """Lanes that were closed because there were too many."""

    @property
    def open(self) -> int:
        """The number of lanes, spare ones included."""
        return len(self._serving)

    def new_lane(self) -> TlsLane:
        """The protocol of one accepted connection."""
        return _ServedLane(self._begin)

    def _begin(self, lane: TlsLane) -> None:
        if len(self._serving) >= self._most:
            self.refused_total += 1
            lane.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(lane), name="lane")
        self._serving[task] = lane
        task.add_done_callback(self._serving.pop)

    async def _serve(self, lane: TlsLane) -> None:
        try:
            certificate, who = lane.peer_certificate(), lane.peer_address()
            peer = await self._guard.admit_certificate(RPC, certificate, who)
            opening = await self._opening(peer.name, lane)
            await self._guard.admit_certificate(RPC, certificate, who)
            await self._arrived(peer, opening, lane)
        except (LatticeError, CarrierLost):
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
    address: Address, lanes: LaneServer, context: Callable[[], ssl.SSLContext]
) -> AsyncIterator[int]:
    """Serve lanes until the context ends; yields the port. Raises `ConfigurationError`.

    `context` returns the TLS context for the next connection.
    """
    try:
        server = await asyncio.get_running_loop().create_server(
            lanes.new_lane,
            address.host,
            address.port,
            ssl=ReloadingContext(context),
            ssl_handshake_timeout=_HANDSHAKE_S,
            backlog=_BACKLOG,
        )
    except OSError:
        raise ConfigurationError(
            f"{address} can't be listened on: the address is in use or not this machine's.",
            hint="Change api.lane_listen, or stop what listens there.",
        ) from None
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await lanes.aclose()
