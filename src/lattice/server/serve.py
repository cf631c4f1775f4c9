"""Runs the server: both listeners, the watches behind them, and an orderly end.

Everything that runs has an owner here: the task group ends when the first stop is asked for, new
calls are turned away, open ones get the configured grace, then the engines are let go.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.gate import HelperGate
from lattice.adapters.slurm.accounted import SlurmAccounting
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.jobfiles import SlurmJobFiles
from lattice.adapters.slurm.mirror import SlurmScheduler
from lattice.adapters.slurm.operator import SlurmNodeOperator
from lattice.adapters.slurm.rest import SlurmRest
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import ConfigurationError
from lattice.base.signing import SigningKey
from lattice.domain.submission import SubmitGate
from lattice.features.attach.model import LARGEST_MESSAGE_BYTES, PING_EVERY_S, SILENCE_S
from lattice.features.diag.service.asking import NodeAsking
from lattice.features.identity.model import AuthDiscovery
from lattice.features.link.service.peers import Peers
from lattice.features.logs.service.lastoutput import NodeLastOutputs
from lattice.server.agents import AgentParts, new_replica_id, open_agents
from lattice.server.attach import AttachNeeds, open_attach
from lattice.server.compare import CompareNeeds, compare_service
from lattice.server.compose import Faces, Parts, compose
from lattice.server.diag import DiagNeeds, diag_service
from lattice.server.figures import Figures
from lattice.server.journal import LoggedJournal
from lattice.server.limits import open_limits
from lattice.server.links import Intakes, PeerBuckets, open_links, open_reach
from lattice.server.logs import log_intake, open_log_keeping, open_log_reading
from lattice.server.objects import open_objects
from lattice.server.presence import show_presence
from lattice.server.report import ReportNeeds, open_report
from lattice.server.sections import Address, ApiSection, Listener, ServerConfig
from lattice.server.sharing import open_sharing
from lattice.server.state import open_state
from lattice.server.telemetry import (
    TelemetryNeeds,
    open_metric_store,
    open_telemetry,
    open_telemetry_parts,
)
from lattice.server.tls import ServerTls, TlsFiles
from lattice.server.top import top_parts
from lattice.server.verifier import open_verifier
from lattice.server.watch import watching_of

_LARGEST_HEADER_BYTES = 32 * 1024


async def serve(
    config: ServerConfig, log: structlog.stdlib.BoundLogger, *, single: Path | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; `single` is the folder of a server without etcd."""
    clock = SystemClock()
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        figures = Figures()
        scheduler = await stack.enter_async_context(_scheduler(config, clock, figures))
        verifier = await stack.enter_async_context(open_verifier(config.api, clock))
        state = await stack.enter_async_context(open_state(config.quorum, single, clock, log))
        sharing = (
            await stack.enter_async_context(
                open_sharing(state.store, config.sharing, clock, LoggedJournal(log, figures))
            )
            if state
            else None
        )
        replica_id = new_replica_id()
        reach = (
            await stack.enter_async_context(open_reach(config, state.store, clock, replica_id))
            if state
            else None
        )
        if reach:
            show_presence(figures, reach.presences)
        agents = await stack.enter_async_context(
            open_agents(
                config,
                state.store if state else None,
                clock,
                replica_id=replica_id,
                presences=reach.presences if reach else None,
                replicas=reach.addresses if reach else None,
            )
        )
        peers = await stack.enter_async_context(_peers(agents)) if agents else None
        limits = await stack.enter_async_context(
            open_limits(
                config.rate_limits,
                state.store if state else None,
                clock,
                figures,
                replica=replica_id,
                lease=reach.membership.require_lease if reach else None,
                replicas=(lambda: tuple(each.id for each in reach.others())) if reach else tuple,
                others=PeerBuckets(peers, reach) if peers and reach else None,
            )
        )
        objects = open_objects(config.objects, single)
        metrics = await stack.enter_async_context(open_metric_store(config.telemetry, clock))
        measuring = (
            TelemetryNeeds(
                scheduler=scheduler,
                state=state.store,
                sharing=sharing,
                clock=clock,
                views=config.views,
                figures=figures,
                journal=LoggedJournal(log, figures),
            )
            if state and sharing
            else None
        )
        samples = (
            await stack.enter_async_context(open_telemetry(measuring, config.telemetry, metrics))
            if measuring and agents
            else None
        )
        keeping = (
            await stack.enter_async_context(
                open_log_keeping(scheduler, objects, state.store, clock, config.logs.rules, figures)
            )
            if objects and state
            else None
        )
        links = (
            await stack.enter_async_context(
                open_links(
                    config,
                    reach,
                    agents,
                    peers,
                    limits.rates,
                    figures,
                    log,
                    Intakes(
                        logs=log_intake(
                            scheduler,
                            SlurmJobFiles(_commands(config)),
                            objects,
                            agents.signer,
                            clock,
                            LoggedJournal(log, figures),
                            *([keeping.note] if keeping else []),
                        )
                        if objects
                        else None,
                        metrics=samples.rpc if samples else None,
                    ),
                )
            )
            if reach and agents and peers
            else None
        )
        telemetry = (
            await stack.enter_async_context(
                open_telemetry_parts(measuring, samples, links.desk, agents.signer)
            )
            if links and agents and measuring and samples
            else None
        )
        logs = (
            await stack.enter_async_context(
                open_log_reading(
                    scheduler, objects, links.desk, agents.signer, clock, limits, sharing
                )
            )
            if links and objects and agents and sharing
            else None
        )
        attach = (
            await stack.enter_async_context(
                open_attach(
                    AttachNeeds(
                        scheduler=scheduler,
                        nodes=links.desk,
                        signer=agents.signer,
                        limits=limits,
                        state=state.store,
                        clock=clock,
                        replica=replica_id,
                        replicas=lambda: tuple(each.id for each in reach.others()),
                    ),
                    config.attach,
                    figures,
                    LoggedJournal(log, figures),
                )
            )
            if links and agents and state and reach
            else None
        )
        report = (
            await stack.enter_async_context(
                open_report(
                    ReportNeeds(
                        scheduler=scheduler,
                        store=metrics,
                        accounting=SlurmAccounting(_commands(config)),
                        objects=objects,
                        sharing=sharing,
                        clock=clock,
                        limits=limits,
                        replica=replica_id,
                        replicas=(lambda: tuple(each.id for each in reach.others()))
                        if reach
                        else tuple,
                    ),
                    figures,
                )
            )
            if sharing
            else None
        )
        asking = (
            NodeAsking(links.desk, agents.signer, samples.attempts.of)
            if links and agents and samples
            else None
        )
        faces = compose(
            Parts(
                scheduler=scheduler,
                operator=SlurmNodeOperator(_commands(config)),
                verifier=verifier,
                claim_names=config.api.claim_names,
                discovery=_discovery(config.api),
                clock=clock,
                figures=figures,
                log=log,
                gate=_gate(config, clock),
                state=state.store if state else None,
                cluster_record=state.cluster if state else None,
                note=state.note if state else "",
                views=config.views,
                agents=agents,
                presences=reach.presences if reach else None,
                limits=limits,
                probe=links.probe if links else None,
                logs=logs,
                last_outputs=NodeLastOutputs(links.desk, agents.signer, clock)
                if links and agents
                else None,
                sharing=sharing,
                attach=attach,
                telemetry=telemetry,
                watch=watching_of(telemetry, scheduler, sharing, clock, limits)
                if telemetry and sharing
                else None,
                top=top_parts(scheduler, telemetry, sharing, clock, limits)
                if telemetry and sharing
                else None,
                report=report,
                diag=diag_service(
                    DiagNeeds(
                        scheduler=scheduler,
                        telemetry=telemetry,
                        facts=asking,
                        stacks=asking,
                        sharing=sharing,
                        clock=clock,
                        limits=limits,
                    ),
                    config.diag,
                    log,
                )
                if telemetry and sharing
                else None,
                compare=compare_service(
                    CompareNeeds(
                        scheduler=scheduler,
                        store=metrics,
                        objects=objects,
                        modes=telemetry.modes if telemetry else None,
                        sharing=sharing,
                        clock=clock,
                        views=config.views,
                        limits=limits,
                    )
                )
                if sharing
                else None,
            )
        )
        tls = _tls(config.api)
        _on_signals(stop, tls)
        await stack.enter_async_context(_listening(config.api, faces, tls))
        log.info(
            "serving",
            rest=str(config.api.rest_listen),
            grpc=str(config.api.grpc_listen),
            tls=tls is not None,
            auth=config.api.auth.value,
        )
        await stop.wait()
        log.info("stopping", grace_s=config.api.shutdown_grace_s)
        if links:
            links.leave()
    log.info("stopped")


@asynccontextmanager
async def _peers(agents: AgentParts) -> AsyncIterator[Peers]:
    peers = Peers(agents.replica.channel_credentials, agents.replica.channel_options)
    try:
        yield peers
    finally:
        await peers.aclose()


@asynccontextmanager
async def _scheduler(
    config: ServerConfig, clock: Clock, figures: Figures
) -> AsyncIterator[SlurmScheduler]:
    slurm = config.slurm
    if slurm.rest_url is None:
        raise ConfigurationError("slurm.rest_url is not set.", hint="Name slurmrestd's socket.")
    rest = SlurmRest(slurm.rest_url, user=slurm.user or "", token_file=slurm.token_file)
    scheduler = SlurmScheduler(
        config.cluster.name,
        rest,
        _commands(config),
        config.views,
        clock,
        slurm.poll_interval_s,
    )
    figures.watch(lambda: _slurm_counts(scheduler))
    polling = asyncio.create_task(scheduler.run(), name="slurm")
    try:
        yield scheduler
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await rest.aclose()


def _commands(config: ServerConfig) -> SlurmCommands:
    slurm = config.slurm
    return SlurmCommands(
        slurm.config_file, bin_dir=slurm.bin_dir, operate_prefix=slurm.operate_with
    )


def _slurm_counts(scheduler: SlurmScheduler) -> dict[str, float]:
    counts: dict[str, float] = {
        f"slurm_{name}_{count}": value
        for name, polled in (("jobs", scheduler.jobs), ("nodes", scheduler.nodes))
        for count, value in asdict(polled.counts).items()
    }
    counts["slurm_past_questions_total"] = scheduler.past_reader.questions_total
    return counts


def _gate(config: ServerConfig, clock: Clock) -> SubmitGate | None:
    key = config.gate.grant_key or config.identity.grant_key
    if config.gate.socket is None or key is None:
        return None
    return HelperGate(HelperChannel(config.gate.socket), GrantSigner(SigningKey.load(key), clock))


@asynccontextmanager
async def _listening(api: ApiSection, faces: Faces, tls: ServerTls | None) -> AsyncIterator[None]:
    door = _bound(api.rest_listen)
    _offer_grpc(api.grpc_listen, faces, tls)
    rest = _Rest(_rest_config(api, faces, tls))
    await faces.grpc.start()
    serving = asyncio.create_task(rest.serve(sockets=[door]), name="rest")
    watching = asyncio.create_task(tls.watch(), name="tls") if tls else None
    try:
        while not rest.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)
        yield
    finally:
        if watching:
            watching.cancel()
        rest.should_exit = True
        await faces.grpc.stop(api.shutdown_grace_s)
        await asyncio.gather(serving, return_exceptions=True)
        door.close()


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        door = socket.create_server((address.host, address.port), family=family, backlog=2048)
    except OSError as error:
        raise _unusable(address, error.strerror or str(error)) from None
    # Connections inherit it. asyncio would not set it on them: it looks for a protocol number that
    # `create_server` leaves out. Without it every other key of a terminal waits 40 ms.
    door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return door


def _offer_grpc(address: Address, faces: Faces, tls: ServerTls | None) -> None:
    try:
        if tls is None:
            faces.grpc.add_insecure_port(str(address))
        else:
            faces.grpc.add_secure_port(str(address), tls.grpc_credentials())
    except RuntimeError:
        raise _unusable(address, "the address is in use or not this machine's") from None


def _unusable(address: Address, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{address} can't be listened on: {why}.",
        hint="Change api.rest_listen or api.grpc_listen, or stop what listens there.",
    )


class _Rest(uvicorn.Server):
    def capture_signals(self) -> Any:
        """Signals are the process's, handled once for both listeners."""
        return nullcontext()


def _rest_config(api: ApiSection, faces: Faces, tls: ServerTls | None) -> uvicorn.Config:
    config = uvicorn.Config(
        faces.rest,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        h11_max_incomplete_event_size=_LARGEST_HEADER_BYTES,
        # Reads a message when the one before was taken, so a slow reader slows the writer.
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=SILENCE_S - PING_EVERY_S,
        timeout_graceful_shutdown=max(1, round(api.shutdown_grace_s)),
    )
    if tls is not None:
        config.load()
        config.ssl = tls.http_context()
    return config


def _tls(api: ApiSection) -> ServerTls | None:
    if api.tls_cert is None or api.tls_key is None:
        return None
    return ServerTls(
        TlsFiles(api.tls_cert, api.tls_key, api.tls_ca),
        rest_mtls=api.requires_client_certificate(Listener.REST),
        grpc_mtls=api.requires_client_certificate(Listener.GRPC),
    )


def _discovery(api: ApiSection) -> AuthDiscovery:
    issuer = api.oidc_issuer or ""
    return AuthDiscovery(idp_url=issuer, client_id=api.oidc_client_id or "", issuer=issuer)


def _on_signals(stop: asyncio.Event, tls: ServerTls | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, tls.reload if tls else lambda: None)
