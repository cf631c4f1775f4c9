"""Runs the server: its listeners, the loops behind them, and an orderly end.

Everything that runs has an owner here. On a stop, new calls are refused and open ones get the
configured grace. Then the contexts end, the last opened first.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog

from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from lattice.base.metrics_endpoint import MetricsEndpoint, metrics_address
from lattice.base.pauses import LoopPauses
from lattice.base.process import MANY, settle
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.base.systemd import Systemd
from lattice.base.unused_memory import collect_unused
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateView
from lattice.foundation.own_metrics import OwnMetrics
from lattice.foundation.wiring import Wiring
from lattice.server.cluster.agent_listener import agent_listener
from lattice.server.cluster.lane_listener import offered_lanes
from lattice.server.config.api_section import ApiSection
from lattice.server.config.sections import ServerConfig
from lattice.server.features import features
from lattice.server.foundation import Ground, open_ground
from lattice.server.listeners.composition import Faces, compose
from lattice.server.listeners.listeners import (
    listening,
    open_connections,
    server_tls,
    show_connections,
)
from lattice.server.listeners.rest_app import Description
from lattice.server.recovery.restore import restore_if_ordered
from lattice.server.reload import server_reloads
from lattice.server.tls import ListenerTls

_FIRST_READINGS_S, _READING_PAUSE_S = 5.0, 0.02
_METRICS_REUSE_S = 1.0
"""Many scrapers cost no more than one a second."""


async def serve(
    config: ServerConfig,
    log: structlog.stdlib.BoundLogger,
    pauses: LoopPauses,
    read: Callable[[], ServerConfig],
) -> None:
    """Serve until SIGTERM or SIGINT. On SIGHUP the configuration is read again by `read`.

    Raises `LoopFailed` after an orderly stop, if a loop failed that the server needs.
    """
    stop = asyncio.Event()
    clock = SystemClock()
    supervisor = Supervisor(clock, stop.set)
    systemd = Systemd(os.environ)
    await restore_if_ordered(config, clock, log)
    async with (
        open_ground(config, clock, log, supervisor, read) as ground,
        AsyncExitStack() as stack,
    ):
        faces = await open_features(ground, stack)
        own_metrics = ground.foundation.own_metrics
        own_metrics.show_pauses(pauses)
        tls = server_tls(config.api)
        hangup = asyncio.Event()
        _on_signals(stop, hangup)
        reloading = Loop("reload", lambda: _reload(hangup, ground, tls), OnFailure.RESTART)
        await stack.enter_async_context(supervisor.running(reloading))
        await first_readings(
            ground.scheduler,
            lambda: ground.scheduler.accounting_error,
            ground.cluster.agreed.cluster,
            stop,
        )
        connections = open_connections(config.api)
        show_connections(own_metrics, connections)
        async with listening(config.api, faces, tls, supervisor, connections):
            log.info(
                "serving",
                rest=str(config.api.rest_listen),
                grpc=str(config.api.grpc_listen),
                tls=tls.encrypts,
                auth=config.api.auth.value,
            )
            settle(MANY)
            pauses.start()
            systemd.ready(f"serves REST on {config.api.rest_listen}")
            watchdog = Loop("watchdog", systemd.keep_alive, OnFailure.RESTART)
            others = (*_metrics_listener(config.api, own_metrics), *_unused_memory(ground))
            async with supervisor.running(watchdog, *others):
                await stop.wait()
            systemd.stopping()
            log.info("stopping", grace_s=config.api.shutdown_grace_s)
            faces.stop.begin()
            if ground.agents:
                ground.agents.links.leave()
    log.info("stopped")
    supervisor.check()


async def first_readings(
    scheduler: Scheduler,
    accounting_error: Callable[[], str],
    state: StateView,
    stop: asyncio.Event,
    within_s: float = _FIRST_READINGS_S,
) -> None:
    """Wait until Slurm, its accounts and the agreed state were read once, or are away.

    A client that can't connect asks another server. One that gets a 503 would not.
    """
    for _ in range(int(within_s / _READING_PAUSE_S)):
        if _are_read(scheduler, accounting_error(), state) or stop.is_set():
            return
        await asyncio.sleep(_READING_PAUSE_S)


def _are_read(scheduler: Scheduler, accounting_error: str, state: StateView) -> bool:
    try:
        slurm = scheduler.live()
    except Unavailable:
        return False
    has_accounts = bool(slurm.cluster.accounts.accounts or accounting_error)
    return slurm.source.as_of is not None and has_accounts and state.source.as_of is not None


async def open_features(ground: Ground, stack: AsyncExitStack) -> Faces:
    """Open every feature and the listener for agents. Raises `ConfigurationError`."""
    description = Description(lambda: faces.routes)
    wirings = tuple(features(ground, description.text))
    for each in wirings:
        stack.push_async_callback(each.close)
        await stack.enter_async_context(ground.foundation.supervisor.running(*each.loops))
    if ground.agents is not None:
        served, config = ground.agents, ground.config
        guard = await stack.enter_async_context(
            agent_listener(
                str(config.api.agent_listen),
                ground.cluster.view,
                served.parts,
                served.links,
                ground.cluster.limits.rates,
                ground.foundation.journal,
                ground.foundation.log,
                (*wirings, Wiring(offer_agents=served.measurement.offer_agents)),
            )
        )
        if config.api.lanes:
            lanes = offered_lanes(
                config.api, guard, served.links.desk, served.parts.replica, ground.foundation
            )
            await stack.enter_async_context(lanes)
    faces = compose(
        ground.foundation,
        wirings,
        ground.verifier,
        ground.config.api.claim_names,
        ground.cluster.locks.next_change,
        ground.config.rate_limits.public_per_minute,
    )
    for each in wirings:
        ground.reloader.add(*each.reloads)
    ground.reloader.add(*server_reloads(ground, faces.gatekeeper))
    return faces


def _metrics_listener(api: ApiSection, own_metrics: OwnMetrics) -> tuple[Loop, ...]:
    address = metrics_address(api.metrics_listen)
    if address is None:
        return ()
    endpoint = MetricsEndpoint(address, own_metrics.text, reuse_s=_METRICS_REUSE_S)
    return (Loop("metrics listener", endpoint.run, OnFailure.RESTART),)


def _unused_memory(ground: Ground) -> tuple[Loop, ...]:
    keys = ground.foundation.data_keys
    if keys is None:
        return ()
    run = partial(collect_unused, lambda: keys.cached)
    return (Loop("unused memory", run, OnFailure.RESTART),)


async def _reload(hangup: asyncio.Event, ground: Ground, tls: ListenerTls) -> None:
    """At each hangup, read the configuration, the certificates and the site's keys again."""
    keys = ground.foundation.data_keys
    while True:
        await hangup.wait()
        hangup.clear()
        await ground.reloader.reload()
        tls.reload()
        if keys is not None:
            keys.wrap_soon()


def _on_signals(stop: asyncio.Event, hangup: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
