"""Every background loop of a server is killed in turn, and does what it is declared to do.

The server is opened as `serve` opens it, on a database in a folder. Slurm, the identity provider
and the metric store are addresses where nobody answers.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme
from fastapi import FastAPI
from grpc import aio

from lattice.base.address import Address
from lattice.base.clock import SystemClock
from lattice.base.logs import configure_logging
from lattice.base.supervisor import LoopFailed, OnFailure
from lattice.features.logs.section import LogsSection
from lattice.foundation.own_metrics import OwnMetrics
from lattice.server.cluster.agents import as_single_server
from lattice.server.config.api_section import ApiSection
from lattice.server.config.engine_sections import TelemetrySection
from lattice.server.config.sections import NodeAgentSection, ServerConfig, SlurmSection
from lattice.server.config.sensitive_section import SensitiveSection
from lattice.server.foundation import open_ground
from lattice.server.listeners.composition import Faces
from lattice.server.listeners.listeners import listening, open_connections, server_tls
from lattice.server.listeners.server_stop import ServerStop
from lattice.server.serve import open_features
from lattice.wire.interceptor import never_changes
from tests.eventually import eventually_async
from tests.fakes.supervised import Defect, SupervisedLoops

RESTARTED = (
    "attach records",
    "audit allocations",
    "audit archive",
    "audit log",
    "certificate expiry",
    "changed locks",
    "claims",
    "cluster counts",
    "data keys",
    "data keys wrapped",
    "drain failed nodes",
    "ended jobs",
    "events of runs",
    "health of engines",
    "limits slots",
    "limits view",
    "links",
    "links announced",
    "locked nodes",
    "log metadata",
    "log retention",
    "membership",
    "node checks",
    "oidc keys",
    "presences",
    "replicas announced",
    "samples writer 0",
    "samples writer 1",
    "samples writer 2",
    "samples writer 3",
    "slurm",
    "state claims",
    "state cluster",
    "state ended",
    "state links",
    "state locks",
    "state nodes",
    "state replicas",
    "state shares",
    "state telemetry",
    "summaries of runs",
    "telemetry told",
    "tls",
    "trust",
    "trust lost",
)
ENDS = ("rest",)
_HERE = Address("127.0.0.1", 0)
_NOBODY = "http://127.0.0.1:9"


@dataclass(frozen=True)
class OpenServer:
    supervisor: SupervisedLoops
    figures: OwnMetrics
    log: io.StringIO

    def lines(self, loop: str) -> list[dict[str, Any]]:
        """What the log has about one loop."""
        found = [json.loads(each) for each in self.log.getvalue().splitlines()]
        return [each for each in found if each.get("loop") == loop]


def _site_keys(folder: Path) -> Path:
    file = folder / "site-keys"
    file.write_text(f"site-1 {'0f' * 32}\n")
    file.chmod(0o600)
    return file


def config(folder: Path) -> ServerConfig:
    leaf = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    api = ApiSection(
        rest_listen=_HERE,
        grpc_listen=_HERE,
        agent_listen=_HERE,
        lane_listen=_HERE,
        tls_cert=folder / "tls.crt",
        tls_key=folder / "tls.key",
        oidc_issuer=_NOBODY,
        shutdown_grace_s=0.0,
    )
    return as_single_server(
        ServerConfig(
            api=api,
            slurm=SlurmSection(rest_url=f"unix:{folder}/none.sock"),
            logs=LogsSection(retention_days=30),
            sensitive=SensitiveSection(keys_file=_site_keys(folder)),
            node_agent=NodeAgentSection(drain_failed=True),
            telemetry=TelemetrySection(tsdb_endpoint=_NOBODY),
        ),
        folder,
    )


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[OpenServer]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream, supervisor, made = io.StringIO(), SupervisedLoops(), config(folder)
    log = configure_logging("info", stream=stream)
    try:
        async with (
            open_ground(made, SystemClock(), log, supervisor) as ground,
            AsyncExitStack() as stack,
        ):
            await open_features(ground, stack)
            # What the listeners show is no part of this.
            faces: Any = Faces(
                FastAPI(),
                aio.server(),
                None,  # type: ignore[arg-type]
                ServerStop(never_changes),
            )
            async with listening(
                made.api, faces, server_tls(made.api), supervisor, open_connections(made.api)
            ):
                yield OpenServer(supervisor, ground.foundation.own_metrics, stream)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenServer]:
    async with opened(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
async def test_every_loop_of_a_server_is_listed_here(server: OpenServer) -> None:
    declared = {name: each.on_failure for name, each in server.supervisor.loops.items()}
    assert declared == dict.fromkeys(RESTARTED, OnFailure.RESTART) | dict.fromkeys(
        ENDS, OnFailure.END
    )
    assert server.supervisor.failures == dict.fromkeys(declared, 0)
    assert 'lattice_loop_failures_total{loop="slurm"} 0.0' in server.figures.text()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", RESTARTED)
async def test_a_loop_that_dies_is_logged_counted_and_started_again(
    server: OpenServer, name: str
) -> None:
    supervisor = server.supervisor
    await supervisor.kill(name)
    await eventually_async(lambda: supervisor.begun[name] == 2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert supervisor.begun[name] == 2, "it runs on"
    assert supervisor.failures[name] == 1
    assert f'lattice_loop_failures_total{{loop="{name}"}} 1.0' in server.figures.text()
    (line,) = server.lines(name)
    assert line["event"] == "a background loop failed and is started again"
    assert f"{Defect.__name__}: {name}" in line["exception"]
    assert not supervisor.ended
    supervisor.check()


@pytest.mark.parametrize("name", ENDS)
async def test_a_loop_that_a_server_needs_ends_it(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as server:
        await server.supervisor.kill(name)
        await eventually_async(lambda: server.supervisor.ended)
        assert f'lattice_loop_failures_total{{loop="{name}"}} 1.0' in server.figures.text()
        (line,) = server.lines(name)
        assert line["event"] == "a background loop failed and the process ends"
        assert f"{Defect.__name__}: {name}" in line["exception"]
    with pytest.raises(LoopFailed, match=f"'{name}' failed: Defect"):
        server.supervisor.check()


def test_the_page_for_operators_says_what_each_failure_does() -> None:
    page = Path(__file__).parents[3] / "docs" / "operate" / "loops.md"
    found = {}
    for line in page.read_text().splitlines():
        if line.startswith("| server |"):
            _, _, names, _, failure, _ = line.split("|")
            found |= dict.fromkeys(names.strip(" `").split("`, `"), failure.strip(" *"))
    assert found == dict.fromkeys(RESTARTED, "restart") | dict.fromkeys(ENDS, "end")
