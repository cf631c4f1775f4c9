"""The two listeners for people and services: REST and gRPC, opened and closed together.

`composition` makes what they offer.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import uvicorn

from lattice.base.address import Address
from lattice.base.errors import ConfigurationError
from lattice.base.supervisor import Loop, LoopReturned, OnFailure, Supervisor
from lattice.features.attach.model import LARGEST_MESSAGE_BYTES, PING_EVERY_S, SILENCE_S
from lattice.foundation.own_metrics import OwnMetrics
from lattice.server.config.api_section import ApiSection, ListenerAddress
from lattice.server.listeners.bounded_http import BoundedHttp, HttpBounds
from lattice.server.listeners.composition import Faces
from lattice.server.listeners.connections import (
    AcceptingServer,
    ConnectionLimits,
    Connections,
    CountedListener,
    fitting,
)
from lattice.server.tls import ListenerTls, PlainText, ServerTls, TlsFiles

TLS_BUFFER_BYTES = 32 * 1024
"""For each connection, from `accept` on: room for a TLS record, which has 16 KiB at most."""


@asynccontextmanager
async def listening(
    api: ApiSection,
    faces: Faces,
    tls: ListenerTls,
    supervisor: Supervisor,
    connections: Connections,
) -> AsyncIterator[None]:
    """Serve both until the context ends; open calls then get their grace.

    Raises `ConfigurationError` if an address can't be used.
    """
    listener = _bound(api.rest_listen, connections)
    try:
        tls.add_grpc_port(faces.grpc, str(api.grpc_listen))
    except RuntimeError:
        why = "the address is in use or not this machine's"
        raise _unusable(api.grpc_listen, why) from None
    config = rest_config(api, faces)
    tls.prepare_http(config)
    rest = RestServer(config, HttpBounds())
    served = asyncio.Event()

    async def serve_rest() -> None:
        try:
            await rest.serve(sockets=[listener])
        finally:
            served.set()
        if not rest.should_exit:
            raise LoopReturned("REST is not served any more")

    await faces.grpc.start()
    # uvicorn ends when `should_exit` is set, and its socket can't be served a second time.
    serving = Loop("rest", serve_rest, OnFailure.END, finite=True)
    async with supervisor.running(serving, *tls.loops):
        try:
            while not rest.started and not served.is_set():  # noqa: ASYNC110 - uvicorn has no event
                await asyncio.sleep(0.01)
            yield
        finally:
            rest.should_exit = True
            await faces.grpc.stop(api.shutdown_grace_s)
            await served.wait()
            listener.close()


def server_tls(api: ApiSection) -> ListenerTls:
    """The certificates of both listeners, if they are configured."""
    if api.tls_cert is None or api.tls_key is None:
        return PlainText()
    return ServerTls(
        TlsFiles(api.tls_cert, api.tls_key, api.tls_ca),
        rest_mtls=api.requires_client_certificate(ListenerAddress.REST),
        grpc_mtls=api.requires_client_certificate(ListenerAddress.GRPC),
    )


def open_connections(api: ApiSection) -> Connections:
    """A counter of the REST listener's connections, within the configured limits."""
    limits = ConnectionLimits(api.max_connections, api.max_connections_per_address)
    return Connections(fitting(limits))


def show_connections(figures: OwnMetrics, connections: Connections) -> None:
    figures.watch(lambda: {"connections_refused_total": connections.refused_total})
    figures.show(lambda: {"connections_open": connections.open})


class RestServer(uvicorn.Server):
    """Uvicorn without signal handlers, and with bounds on what a client may do."""

    def __init__(self, config: uvicorn.Config, bounds: HttpBounds) -> None:
        super().__init__(config)
        self._bounds = bounds
        self.servers: list[Any] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's, for sockets that are bound already."""
        await self.lifespan.startup()
        loop, config = asyncio.get_running_loop(), self.config
        # asyncio takes 256 KiB for each connection before its handshake, and has no parameter for
        # it. All connections that one address may open would cost the server a gigabyte.
        asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES

        def protocol() -> BoundedHttp:
            return BoundedHttp(
                self._bounds,
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        self.servers = [
            AcceptingServer(each, protocol, config.ssl, self._bounds.head_s)
            for each in sockets or ()
        ]
        self.started = True

    def capture_signals(self) -> Any:
        """The process handles signals, once for both listeners."""
        return nullcontext()


def rest_config(api: ApiSection, faces: Faces) -> uvicorn.Config:
    """The configuration of uvicorn, without TLS."""
    return uvicorn.Config(
        faces.rest,
        log_config=None,
        access_log=False,
        server_header=False,
        # Otherwise a caller on loopback, where uvicorn expects a proxy, could set its own address.
        proxy_headers=False,
        lifespan="off",
        http="h11",
        # Reads a message only after the one before was taken, so a slow reader slows the writer.
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=SILENCE_S - PING_EVERY_S,
        timeout_graceful_shutdown=max(1, round(api.shutdown_grace_s)),
    )


def _bound(address: Address, connections: Connections) -> socket.socket:
    try:
        listener = CountedListener(address, connections)
    except OSError as error:
        raise _unusable(address, error.strerror or str(error)) from None
    # Connections inherit it. asyncio would not set it on them: it looks for a protocol number that
    # `create_server` leaves out. Without it every other key of a terminal waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _unusable(address: Address, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{address} can't be listened on: {why}.",
        hint="Change api.rest_listen or api.grpc_listen, or stop what listens there.",
    )
