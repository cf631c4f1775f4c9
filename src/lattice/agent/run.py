"""Runs the agent: creates all its parts, in the order in which they are needed.

It opens no port to the network. Everything that it starts ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from lattice import __version__
from lattice.access.grants import GrantChecker
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.clock import HelperClock
from lattice.adapters.linux.nodejobs import NodeJobs, Roots
from lattice.agent.certificate_process import CertificateProcess
from lattice.agent.clock import HelperTime, LinkedTime
from lattice.agent.config import AgentSettings
from lattice.agent.diag import DiagParts
from lattice.agent.fresh_start import FreshStart
from lattice.agent.identity import AgentIdentity
from lattice.agent.identity_cascade import Cascade
from lattice.agent.identity_issuer import GrpcIssuer
from lattice.agent.identity_spire import spire_identity
from lattice.agent.identity_store import IdentityStore
from lattice.agent.job_identity import job_identity_loops
from lattice.agent.logs import LogParts
from lattice.agent.process_figures import OwnProcess, process_figures
from lattice.agent.sections import AgentConfig
from lattice.agent.self_check import OwnSources, SelfCheck, latency_state
from lattice.agent.telemetry import TelemetryParts
from lattice.agent.terminals import TerminalParts
from lattice.base.clock import Clock, SystemClock
from lattice.base.loglines import set_level
from lattice.base.pauses import LoopPauses
from lattice.base.process import settle
from lattice.base.reload import Reload, Reloader, ReloadTable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.base.systemd import Systemd
from lattice.base.unused_memory import collect_unused
from lattice.domain.node import NodeHealth
from lattice.domain.stream import Serve, StreamKind
from lattice.features.identity.node.job_socket import ReportedEvents
from lattice.features.link.node.dialler import Dialling
from lattice.features.link.node.echo import serve_echo
from lattice.features.link.node.keeper import LinkKeeper, LinkLine, NodeSelf
from lattice.features.link.node.redial import Redial
from lattice.features.link.node.servertime import ServerTime
from lattice.features.link.node.sessions import NodeSessions
from lattice.features.telemetry.node.exposition import ExposedFigure

_log = logging.getLogger("lattice.agent")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


RELOADED: ReloadTable = {"alerts": (), "log": ("level",)}
"""The keys that change while the agent runs. docs/operate/configuration.md has the same table."""


async def run(
    settings: AgentSettings,
    pauses: LoopPauses,
    read: Callable[[], AgentSettings],
    fresh: FreshStart,
) -> None:
    """Run until SIGTERM, SIGINT or a fresh start. On SIGHUP `read` reads the configuration again.

    Raises `LoopFailed` after an orderly stop, if a required loop failed.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fresh.on_wanted(stop.set)
    supervisor = Supervisor(SystemClock(), stop.set)
    await run_until(stop, settings, supervisor, pauses, read, fresh)
    supervisor.check()


class _Link:
    """The node's link. The parts that use it are made before the keeper that opens it."""

    keeper: LinkKeeper | None = None

    def line(self) -> LinkLine | None:
        return self.keeper.line if self.keeper else None

    def ahead_s(self) -> float | None:
        return line.ahead_s if (line := self.line()) else None


async def run_until(
    stop: asyncio.Event,
    settings: AgentSettings,
    supervisor: Supervisor,
    pauses: LoopPauses,
    read: Callable[[], AgentSettings] | None = None,
    fresh: FreshStart | None = None,
) -> None:
    """Run all parts of the agent until `stop` is set.

    `read` reads the settings again; None: they never change.
    """
    fresh = fresh or FreshStart()
    clock, link = SystemClock(), _Link()
    # Until the link has measured, this is the node's own clock; grants need the link anyway.
    servers = ServerTime(clock, link.ahead_s)
    checker = GrantChecker(settings.node, servers)
    identity = _identity(settings, checker, clock)
    again = read or (lambda: settings)
    reloader = Reloader(
        settings.config, RELOADED, lambda: again().config, lambda _config: (), clock
    )
    reloader.add(Reload("log", lambda log: set_level(log.level)))
    hangup = _on_hangup(identity)
    systemd = Systemd(os.environ)
    # Before it has an identity: a node must not wait for a server while it boots.
    systemd.ready("waits for an identity")
    alive = asyncio.create_task(systemd.keep_alive(), name="watchdog")
    obtaining = asyncio.create_task(identity.obtain(), name="identity")
    try:
        if not await _before(stop, obtaining):
            return
    finally:
        alive.cancel()
    obtaining.result()
    async with AsyncExitStack() as stack:
        figures = partial(process_figures, OwnProcess(), supervisor, pauses)
        reloading = Loop("reload", partial(_reload, hangup, reloader), OnFailure.RESTART)
        loops = _parts(
            stack, settings, link, identity, checker, servers, clock, figures, reloader, fresh
        )
        watchdog = Loop("watchdog", systemd.keep_alive, OnFailure.RESTART)
        await stack.enter_async_context(supervisor.running(watchdog, reloading, *loops))
        settle()
        _log.info("running", extra={"node": settings.node, "version": __version__})
        pauses.start()
        systemd.status(f"runs as {settings.node}")
        await stop.wait()
        if not fresh.wanted:
            systemd.stopping()
        _log.info("stopping")


def _on_hangup(identity: AgentIdentity) -> asyncio.Event:
    """Set at each SIGHUP, which renews the identity too."""
    hangup = asyncio.Event()

    def react() -> None:
        identity.reload_soon()
        hangup.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, react)
    return hangup


async def _reload(hangup: asyncio.Event, reloader: Reloader[AgentConfig]) -> None:
    while True:
        await hangup.wait()
        hangup.clear()
        await reloader.reload()


def _parts(  # noqa: PLR0913, PLR0917 - its dependencies
    stack: AsyncExitStack,
    settings: AgentSettings,
    link: _Link,
    identity: AgentIdentity,
    checker: GrantChecker,
    servers: ServerTime,
    clock: Clock,
    figures: Callable[[], Iterator[ExposedFigure]],
    reloader: Reloader[AgentConfig],
    fresh: FreshStart,
) -> tuple[Loop, ...]:
    """Create every part; `stack` closes them. Returns their loops."""
    jobs = NodeJobs(Roots(spool=settings.config.slurmd.spool_dir), clock)
    dialling = Dialling(identity, clock)
    stack.push_async_callback(dialling.aclose)
    socket = settings.config.helper.socket
    helper_time = HelperTime(
        HelperClock(HelperChannel(socket, timeout_s=5.0)),
        LinkedTime(link.line),
        servers,
        clock,
    )
    helper = HelperChannel(socket, telling=helper_time)
    logs = LogParts(settings, jobs, dialling, link.line, clock, servers, helper, fresh)
    telemetry = TelemetryParts(
        settings,
        jobs,
        link.line,
        clock,
        servers,
        lambda: logs.collecting.followed,
        figures,
        scraped=logs.scraped.of,
    )
    stack.callback(telemetry.close)
    reloader.add(*telemetry.reloads)
    diag = DiagParts(settings, jobs, clock, servers, helper, telemetry)
    terminals = TerminalParts(settings, helper, logs.seals, clock)
    stack.push_async_callback(terminals.aclose)
    serving = _serving(logs, telemetry.serving, diag.serving, terminals.serving)
    sessions = NodeSessions(dialling, checker, serving, terminals.pass_on)
    stack.push_async_callback(sessions.aclose)
    own = _self_check(settings, logs, link, clock)

    def health() -> NodeHealth:
        lacks = (*own.current(), *fresh.lacks())
        slices = telemetry.slices.states()
        health = telemetry.gpu_health.current()
        return replace(health, lacks=lacks, agent=own.facts(), slices=slices)

    keeper = link.keeper = _keeper(settings, identity, dialling, clock, sessions, health)
    return (
        Loop("identity", identity.run, OnFailure.RESTART),
        *_spire_loops(settings, identity),
        Loop("renewals", partial(_follow, identity, keeper), OnFailure.RESTART),
        *_job_loops(settings, jobs, link, servers, clock, telemetry.reported),
        Loop("link", keeper.run, OnFailure.RESTART),
        Loop("helper's clock", helper_time.run, OnFailure.RESTART),
        Loop("self check", own.run, OnFailure.RESTART),
        *_unused_memory(fresh),
        *logs.loops(),
        *telemetry.loops(),
        *diag.loops(),
    )


def _job_loops(
    settings: AgentSettings,
    jobs: NodeJobs,
    link: _Link,
    servers: ServerTime,
    clock: Clock,
    events: ReportedEvents | None,
) -> tuple[Loop, ...]:
    path = settings.config.jobs.socket
    asking = job_identity_loops(path, jobs, link.line, servers, clock, events)
    return (Loop("jobs", jobs.run, OnFailure.RESTART), *asking)


def _unused_memory(fresh: FreshStart) -> tuple[Loop, ...]:
    if not fresh.overwrites:
        return ()
    # The agent overwrites because it has had a data key, and may have others at any time.
    run = partial(collect_unused, lambda: (fresh,))
    return (Loop("unused memory", run, OnFailure.RESTART),)


def _serving(logs: LogParts, *more: Mapping[StreamKind, Serve]) -> dict[StreamKind, Serve]:
    serving: dict[StreamKind, Serve] = {StreamKind.ECHO: serve_echo, StreamKind.LOGS: logs.feed}
    for each in more:
        serving |= each
    return serving


def _self_check(settings: AgentSettings, logs: LogParts, link: _Link, clock: Clock) -> SelfCheck:
    helper = settings.config.helper.socket
    sources = OwnSources(
        spool_bytes=lambda: logs.budget.used_bytes,
        spool_most_bytes=settings.config.logs.spool_mb * 1024 * 1024,
        ahead_s=link.ahead_s,
        latency=latency_state(helper, clock),
    )
    return SelfCheck(helper, settings.config.state_dir, sources)


def _spire_loops(settings: AgentSettings, identity: AgentIdentity) -> tuple[Loop, ...]:
    if not settings.spire_address:
        return ()
    return (Loop("SPIRE", identity.follow_spire, OnFailure.RESTART),)


def _identity(settings: AgentSettings, checker: GrantChecker, clock: Clock) -> AgentIdentity:
    config = settings.config
    certificates = CertificateProcess()
    store = IdentityStore(config.state_dir, settings.node, certificates)
    issuer = GrpcIssuer(
        settings.enrol_at, config.bootstrap.ca, settings.join.ca if settings.join else ""
    )
    spire = spire_identity(settings, certificates, issuer, clock)
    return AgentIdentity(
        Cascade(settings, store, issuer, clock, spire),
        store,
        issuer,
        clock,
        checker=checker,
        replicas=settings.link_to,
    )


def _keeper(
    settings: AgentSettings,
    identity: AgentIdentity,
    dialling: Dialling,
    clock: Clock,
    sessions: NodeSessions,
    health: Callable[[], NodeHealth],
) -> LinkKeeper:
    me = NodeSelf(
        node=settings.node,
        boot_id=_BOOT_ID.read_text().strip(),
        instance=secrets.token_hex(16),
        agent_version=__version__,
        health=health,
    )
    return LinkKeeper(
        me,
        dialling,
        Redial(settings.node, (*identity.replicas, *settings.link_to), Random()),  # noqa: S311
        clock,
        sessions.take,
        lambda welcome: identity.learned(welcome.replicas),
        on_refused=identity.doubt,
    )


async def _follow(identity: AgentIdentity, keeper: LinkKeeper) -> None:
    """Reconnect the link with each new certificate; open streams continue with theirs."""
    generation = identity.generation
    while True:
        await identity.wait_changed()
        if identity.generation != generation:
            generation = identity.generation
            keeper.renew()


async def _before(stop: asyncio.Event, task: asyncio.Task[None]) -> bool:
    """Wait for the task; False if the stop came first."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False
