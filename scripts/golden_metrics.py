"""Names, kinds and labels of what a server and an agent show on their pages of metrics.

The server's are those of its catalogue; a test compares a real page with it. The pages are put
together as the programs do it, with everything switched on and nothing behind them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import structlog

from lattice.adapters.linux.nodejobs import NodeJobs, Roots
from lattice.agent.config import load_agent_config
from lattice.agent.process_figures import OwnProcess, process_figures
from lattice.agent.telemetry import TelemetryParts
from lattice.base.address import Address
from lattice.base.clock import SystemClock
from lattice.base.pauses import LoopPauses
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import CATALOGUE, Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.features.link.node.servertime import ServerTime
from lattice.features.logs.section import LogsSection
from lattice.features.state.section import BackupSection
from lattice.foundation.server_series import SERIES
from lattice.server.cluster.agents import as_single_server
from lattice.server.config.api_section import ApiSection
from lattice.server.config.engine_sections import TelemetrySection
from lattice.server.config.sections import NodeAgentSection, ServerConfig, SlurmSection
from lattice.server.foundation import open_ground
from lattice.server.listeners.listeners import open_connections, show_connections
from lattice.server.serve import open_features

_HERE = Address("127.0.0.1", 0)
_NOBODY = "http://127.0.0.1:9"
_SILENT = structlog.make_filtering_bound_logger(logging.CRITICAL)
_TYPE = re.compile(r"# TYPE (\w+) (\w+)")
_SAMPLE = re.compile(r"(\w+)\{(.*)\} \S+( \d+)?")
_VALUES = {"le": "0.001"}
_LABEL = re.compile(r'(\w+)="')


def metrics() -> str:
    """A line each, by page."""
    server = _sorted(_line(each.name, each.kind, each.labels) for each in SERIES.values())
    agent = _of_page(agent_text())
    return "\n".join(["lattice-server", *server, "", "lattice-agent", *agent]) + "\n"


def server_text() -> str:
    """The page of a server with everything switched on, on which nothing was counted yet."""
    with _silence(), tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_server_page(Path(folder)))


def agent_text() -> str:
    """The page of a node on which every metric of the catalogue was measured."""
    with _silence(), tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_agent_page(Path(folder)))


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing that the programs stand on is there, and they would say so."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def _server_page(folder: Path) -> str:
    log = structlog.wrap_logger(None, wrapper_class=_SILENT)
    config = as_single_server(
        ServerConfig(
            api=ApiSection(
                rest_listen=_HERE, grpc_listen=_HERE, agent_listen=_HERE, lane_listen=_HERE
            ),
            # Not this machine's Slurm, if it has one.
            slurm=SlurmSection(rest_url=f"unix:{folder}/none.sock", bin_dir=folder),
            logs=LogsSection(retention_days=30),
            node_agent=NodeAgentSection(drain_failed=True),
            backup=BackupSection(every_h=24.0),
            telemetry=TelemetrySection(tsdb_endpoint=_NOBODY),
        ),
        folder,
    )
    clock = SystemClock()
    supervisor = Supervisor(clock, lambda: None)
    async with (
        open_ground(config, clock, log, supervisor) as ground,
        AsyncExitStack() as stack,
    ):
        await open_features(ground, stack)
        own_metrics = ground.foundation.own_metrics
        own_metrics.show_pauses(LoopPauses())
        show_connections(own_metrics, open_connections(config.api))
        return own_metrics.text()


async def _agent_page(folder: Path) -> str:
    clock = SystemClock()
    now = clock.now().timestamp()
    file = folder / "agent.yaml"
    file.write_text(f"node_id: n1\nreplicas: ['r1:1']\nstate_dir: {folder}\n")
    settings = load_agent_config(file, {}, {})
    supervisor = Supervisor(clock, lambda: None)
    made = TelemetryParts(
        settings,
        NodeJobs(Roots(proc=folder, cgroup=folder), clock, notices=False),
        lambda: None,
        clock,
        ServerTime(clock, lambda: None),
        tuple,
        lambda: process_figures(OwnProcess(), supervisor, LoopPauses()),
    )
    samples = tuple(
        Sample(
            each.name,
            1.0,
            now,
            labels=labelled(**{label: _VALUES.get(label, "x") for label in each.label_names}),
        )
        for each in CATALOGUE.values()
    )
    made.snapshots.measured(JobSnapshot(JobIdentity("b", 7, 1, now - 60), now, 30.0, samples))
    try:
        async with supervisor.running(Loop("a loop", asyncio.Event().wait, OnFailure.RESTART)):
            return made.metrics_page()
    finally:
        made.close()


def _of_page(text: str) -> list[str]:
    kinds = dict(_TYPE.findall(text))
    labels = {name: tuple(_LABEL.findall(inner)) for name, inner, _ in _SAMPLE.findall(text)}
    named = {
        **labels,
        **{name: labels.get(f"{name}_bucket", ()) for name in kinds if name not in labels},
    }
    return _sorted(_line(name, kind, named[name]) for name, kind in kinds.items())


def _line(name: str, kind: str, labels: tuple[str, ...]) -> str:
    return f"  {name}: {kind}" + (f" by {', '.join(labels)}" if labels else "")


def _sorted(lines: Iterable[str]) -> list[str]:
    return sorted(set(lines))
