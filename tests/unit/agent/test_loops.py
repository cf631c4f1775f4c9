"""Every background loop of an agent is killed in turn, and does what it is declared to do.

The agent is the whole of it, on this machine as it is. Its server is an address where nobody
answers, and it has no helper.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.agent import run as module
from lattice.agent.config import load_agent_config
from lattice.agent.fresh_start import FreshStart
from lattice.agent.log import configure_logging
from lattice.base.clock import SystemClock
from lattice.base.pauses import LoopPauses
from lattice.base.supervisor import LoopFailed, OnFailure
from tests.eventually import eventually_async
from tests.fakes.certificates import authority_files, node_pair
from tests.fakes.supervised import Defect, SupervisedLoops

RESTARTED = (
    "diag",
    "gpu health",
    "helper's clock",
    "identity",
    "jobs",
    "jobs' questions",
    "link",
    "logs budget",
    "logs missed",
    "logs shipping",
    "metrics door",
    "reload",
    "renewals",
    "self check",
    "slices",
    "telemetry",
    "telemetry sending over servers",
    "telemetry sending straight",
    "telemetry told",
    "unused memory",
    "watchdog",
)
ENDS = ("logs",)
_NOBODY = "127.0.0.1:9"
_OVERWRITES = FreshStart(is_overwriting=lambda: True)


@dataclass(frozen=True)
class RunningAgent:
    supervisor: SupervisedLoops
    log: io.StringIO
    metrics: Path

    def lines(self, loop: str) -> list[dict[str, Any]]:
        """What the log has about one loop."""
        found = [json.loads(each) for each in self.log.getvalue().splitlines()]
        return [each for each in found if each.get("loop") == loop]

    async def page(self) -> str:
        """What a scraper reads; the socket is away for a moment when its loop is killed."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self.metrics)
            except OSError:
                await asyncio.sleep(0)
                continue
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = (await reader.read()).decode()
            writer.close()
            await writer.wait_closed()
            return text


def configured(folder: Path) -> Any:
    files = authority_files(folder)
    pair = node_pair(ClusterAuthority.load(files.certificate, files.key, SystemClock()), "n1")
    (folder / "n1.crt").write_bytes(pair.certificate)
    (folder / "n1.key").write_bytes(pair.key)
    (folder / "state").mkdir()
    (folder / "agent.yaml").write_text(
        f"node_id: n1\n"
        f"replicas: ['{_NOBODY}']\n"
        f"state_dir: {folder}/state\n"
        f"bootstrap: {{cert: {folder}/n1.crt, key: {folder}/n1.key, ca: {files.certificate}}}\n"
        f"helper: {{socket: {folder}/helper.sock}}\n"
        f"slurmd: {{spool_dir: {folder}}}\n"
        f"metrics: {{listen: 'unix:{folder}/metrics.sock'}}\n"
        f"jobs: {{socket: {folder}/job.sock}}\n"
        f"slices: [{{name: a, gpus: [0], address: 127.0.0.1:9, host_key: ssh-ed25519 {'A' * 68}, "
        f"key_file: {folder}/n1.key}}]\n"
        f"telemetry: {{remote_write: 'http://{_NOBODY}/api/v1/write'}}\n"
    )
    return load_agent_config(folder / "agent.yaml", {}, {})


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[RunningAgent]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream, supervisor, stop = io.StringIO(), SupervisedLoops(), asyncio.Event()
    told = configured(folder)
    configure_logging("info", stream=stream)
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "settle", lambda: None)  # what the tests hold is not to stay for ever
    agent = asyncio.create_task(
        module.run_until(stop, told, supervisor, LoopPauses(), fresh=_OVERWRITES)
    )
    try:
        await eventually_async(lambda: supervisor.loops or agent.done())
        yield RunningAgent(supervisor, stream, folder / "metrics.sock")
        stop.set()
        await agent
    finally:
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        patch.undo()
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningAgent]:
    async with running(tmp_path_factory.mktemp("agent")) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
async def test_every_loop_of_an_agent_is_listed_here(agent: RunningAgent) -> None:
    declared = {name: each.on_failure for name, each in agent.supervisor.loops.items()}
    assert declared == dict.fromkeys(RESTARTED, OnFailure.RESTART) | dict.fromkeys(
        ENDS, OnFailure.END
    )
    assert agent.supervisor.failures == dict.fromkeys(declared, 0)
    page = await agent.page()
    assert 'lattice_loop_failures_total{loop="link",node="n1"} 0.0' in page
    assert 'lattice_event_loop_longest_pause_seconds{node="n1"} 0.0' in page
    assert page.count("# TYPE lattice_loop_failures_total counter") == 1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", RESTARTED)
async def test_a_loop_that_dies_is_logged_counted_and_started_again(
    agent: RunningAgent, name: str
) -> None:
    supervisor = agent.supervisor
    await supervisor.kill(name)
    await eventually_async(lambda: supervisor.begun[name] == 2)
    count = f'lattice_loop_failures_total{{loop="{name}",node="n1"}} 1.0'
    assert count in await agent.page()
    assert supervisor.begun[name] == 2, "it runs on"
    (line,) = agent.lines(name)
    assert line["event"] == "a background loop failed and is started again"
    assert f"{Defect.__name__}: {name}" in line["exception"]
    assert not supervisor.ended
    supervisor.check()


@pytest.mark.parametrize("name", ENDS)
async def test_a_loop_that_an_agent_needs_ends_it(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as agent:
        await agent.supervisor.kill(name)
        await eventually_async(lambda: agent.supervisor.ended)
        assert f'lattice_loop_failures_total{{loop="{name}",node="n1"}} 1.0' in await agent.page()
        (line,) = agent.lines(name)
        assert line["event"] == "a background loop failed and the process ends"
        assert line["level"] == "critical"
        assert f"{Defect.__name__}: {name}" in line["exception"]
    with pytest.raises(LoopFailed, match=f"'{name}' failed: Defect"):
        agent.supervisor.check()


def test_the_page_for_operators_says_what_each_failure_does() -> None:
    page = Path(__file__).parents[3] / "docs" / "operate" / "loops.md"
    found = {}
    for line in page.read_text().splitlines():
        if line.startswith("| agent |"):
            _, _, names, _, failure, _ = line.split("|")
            found |= dict.fromkeys(names.strip(" `").split("`, `"), failure.strip(" *"))
    assert found == dict.fromkeys(RESTARTED, "restart") | dict.fromkeys(ENDS, "end")
