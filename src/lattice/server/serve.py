"""Runs the server: both listeners, the watches behind them, and an orderly end.

Everything that runs has an owner here: the contexts end when the first stop is asked for, new
calls are turned away, open ones get the configured grace, then the engines are let go.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import structlog

from lattice.base.clock import SystemClock
from lattice.base.garbage import MANY, settle
from lattice.base.pauses import LoopPauses
from lattice.base.supervisor import Supervisor
from lattice.server.compose import compose
from lattice.server.features import open_features
from lattice.server.ground import open_ground
from lattice.server.listening import (
    listening,
    open_connections,
    server_tls,
    show_connections,
)
from lattice.server.sections import ServerConfig
from lattice.server.tls import ServerTls


async def serve(
    config: ServerConfig,
    log: structlog.stdlib.BoundLogger,
    pauses: LoopPauses,
    *,
    single: Path | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; `single` is the folder of a server without etcd.

    Raises `LoopFailed` after an orderly stop, if a loop failed that a server can't do without.
    """
    stop = asyncio.Event()
    clock = SystemClock()
    supervisor = Supervisor(clock, stop.set)
    async with (
        open_ground(config, clock, log, supervisor, single=single) as ground,
        open_features(ground) as (parts, links),
    ):
        ground.figures.show_pauses(pauses)
        faces = compose(parts)
        tls = server_tls(config.api)
        _on_signals(stop, tls)
        connections = open_connections(config.api)
        show_connections(ground.figures, connections)
        async with listening(config.api, faces, tls, supervisor, connections):
            log.info(
                "serving",
                rest=str(config.api.rest_listen),
                grpc=str(config.api.grpc_listen),
                tls=tls is not None,
                auth=config.api.auth.value,
            )
            settle(MANY)
            pauses.start()
            await stop.wait()
            log.info("stopping", grace_s=config.api.shutdown_grace_s)
            if links:
                links.leave()
    log.info("stopped")
    supervisor.check()


def _on_signals(stop: asyncio.Event, tls: ServerTls | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, tls.reload if tls else lambda: None)
