"""Runs the agent: creates all its parts, in the order in which they are needed.

It opens no port to the network. Everything that it starts ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random

from lattice import __version__
from lattice.access.grants import GrantChecker
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.clock import HelperClock
from lattice.adapters.helper.terminals import HelperTerminals
from lattice.adapters.linux.nodejobs import NodeJobs, Roots
from lattice.agent.clock import HelperTime, LinkedTime
from lattice.agent.config import AgentSettings
from lattice.agent.diag import DiagParts
from lattice.agent.identity import AgentIdentity
from lattice.agent.identity_cascade import Cascade, IdentityOptions
from lattice.agent.identity_issuer import GrpcIssuer
from lattice.agent.identity_store import IdentityStore
from lattice.agent.logs import LogParts
from lattice.agent.telemetry import TelemetryParts
from lattice.base.clock import Clock, SystemClock
from lattice.base.pauses import LoopPauses
from lattice.base.process import settle
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.metric import MetricKind
from lattice.domain.node import NodeHealth
from lattice.domain.stream import StreamKind
from lattice.features.attach.node.session_end import TerminalPassing
from lattice.features.link.node.dialler import Dialling
from lattice.features.link.node.echo import serve_echo
from lattice.features.link.node.keeper import LinkKeeper, LinkLine, NodeSelf
from lattice.features.link.node.redial import Redial
from lattice.features.link.node.servertime import ServerTime
from lattice.features.link.node.sessions import NodeSessions
from lattice.features.telemetry.node.exposition import ExposedFigure
from lattice.wire.v1.link_pb2 import Welcome


def process_figures(supervisor: Supervisor, pauses: LoopPauses) -> Iterator[ExposedFigure]:
    """Metrics of the process, read at each scrape."""
    for name, count in supervisor.failures.items():
        yield ExposedFigure(
            "lattice_loop_failures_total",
            MetricKind.COUNTER,
            "failures of background loops",
            float(count),
            (("loop", name),),
        )
    for name, kind, words, value in (
        (
            "longest_pause_seconds",
            MetricKind.GAUGE,
            "longest turn of the last minutes",
            pauses.longest_s,
        ),
        ("busy_seconds_total", MetricKind.COUNTER, "time its turns took", pauses.busy_s),
        ("turns_total", MetricKind.COUNTER, "turns of the event loop", float(pauses.turns)),
    ):
        yield ExposedFigure(f"lattice_event_loop_{name}", kind, words, value)


def terminal_passing(helper: HelperChannel) -> TerminalPassing:
    """Passes frames between the link and terminals in this node's jobs."""
    return TerminalPassing(HelperTerminals(helper))


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger("lattice.agent")


async def run(told: AgentSettings, pauses: LoopPauses) -> None:
    """Run until SIGTERM or SIGINT.

    Raises `LoopFailed` after an orderly stop, if a required loop failed.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervisor = Supervisor(SystemClock(), stop.set)
    await run_until(stop, told, supervisor, pauses)
    supervisor.check()


async def run_until(
    stop: asyncio.Event, told: AgentSettings, supervisor: Supervisor, pauses: LoopPauses
) -> None:
    """Run all parts of the agent until `stop` is set."""
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    keeper: LinkKeeper | None = None

    def link() -> LinkLine | None:
        return keeper.line if keeper else None

    def address() -> str:
        return line.address if (line := link()) else ""

    async with AsyncExitStack() as stack:
        # Until the link has measured, this is the node's own clock; grants need the link anyway.
        servers = ServerTime(clock, lambda: line.ahead_s if (line := link()) else None)
        checker = GrantChecker(told.node, servers)
        identity = _identity(told, checker, clock)
        loop.add_signal_handler(signal.SIGHUP, identity.reload)
        obtaining = asyncio.create_task(identity.obtain(), name="identity")
        if not await _before(stop, obtaining):
            return
        obtaining.result()

        jobs = NodeJobs(Roots(spool=told.config.slurmd.spool_dir), clock)
        dialling = Dialling(identity)
        stack.push_async_callback(dialling.aclose)
        helper_time = HelperTime(
            HelperClock(HelperChannel(told.config.helper.socket, timeout_s=5.0)),
            LinkedTime(dialling, address),
            servers,
            clock,
        )
        helper = HelperChannel(told.config.helper.socket, telling=helper_time)
        logs = LogParts(told, jobs, dialling, link, clock, servers, helper)
        telemetry = TelemetryParts(
            told,
            jobs,
            dialling,
            link,
            clock,
            servers,
            lambda: logs.collecting.followed,
            lambda: process_figures(supervisor, pauses),
        )
        stack.callback(telemetry.close)
        diag = DiagParts(told, jobs, clock, servers, helper, telemetry)
        sessions = NodeSessions(
            dialling,
            checker,
            {
                StreamKind.ECHO: serve_echo,
                StreamKind.LOGS: logs.feed,
                **telemetry.serving,
                **diag.serving,
            },
            {StreamKind.ATTACH: terminal_passing(helper)},
        )
        stack.push_async_callback(sessions.aclose)

        def welcomed(welcome: Welcome) -> None:
            identity.learned(welcome.replicas)

        keeper = LinkKeeper(
            _myself(told.node, telemetry.gpu_health.current),
            dialling,
            Redial(told.node, (*identity.replicas, *told.link_to), Random()),  # noqa: S311
            clock,
            sessions.take,
            welcomed,
            on_refused=identity.doubt,
        )
        await stack.enter_async_context(
            supervisor.running(
                Loop("identity", identity.run, OnFailure.RESTART),
                Loop("renewals", partial(_follow, identity, keeper), OnFailure.RESTART),
                Loop("jobs", jobs.run, OnFailure.RESTART),
                Loop("link", keeper.run, OnFailure.RESTART),
                Loop("helper's clock", helper_time.run, OnFailure.RESTART),
                *logs.loops(),
                *telemetry.loops(),
                *diag.loops(),
            )
        )
        settle()
        _log.info("running", extra={"node": told.node, "version": __version__})
        if missing := without_helper(told.config.helper.socket):
            _log.warning("no helper", extra={"missing": missing})
        pauses.start()
        await stop.wait()
        _log.info("stopping")


def without_helper(socket: Path) -> str:
    """What the agent can't do without a helper on its node; empty if there is one."""
    if socket.is_socket():
        return ""
    return (
        f"{socket} is not there: no terminals in jobs, no output files that only their owner may "
        "read, no counters that only root may; everything else is served"
    )


def _identity(told: AgentSettings, checker: GrantChecker, clock: Clock) -> AgentIdentity:
    config = told.config
    store = IdentityStore(config.state_dir, told.node)
    issuer = GrpcIssuer(told.enrol_at, config.bootstrap.ca)
    options = IdentityOptions(
        node=told.node,
        state_dir=config.state_dir,
        spire_socket=told.spire_socket,
        enrol_token=told.enrol_token,
        enrol_token_file=config.enrol_token_file,
        bootstrap_cert=config.bootstrap.cert,
        bootstrap_key=config.bootstrap.key,
        bootstrap_ca=config.bootstrap.ca,
        agent_token=told.agent_token,
    )
    return AgentIdentity(
        Cascade(options, store, issuer, clock),
        store,
        issuer,
        clock,
        checker=checker,
        replicas=told.link_to,
    )


def _myself(node: str, health: Callable[[], NodeHealth]) -> NodeSelf:
    return NodeSelf(
        node=node,
        boot_id=_BOOT_ID.read_text().strip(),
        instance=secrets.token_hex(16),
        agent_version=__version__,
        health=health,
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
