"""The configuration of a running server is changed, and nobody's stream ends."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from lab.laboratory import Lab
from lab.server import Server
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab

Change = Callable[[dict[str, Any]], None]


def restored(lab: Lab) -> Iterator[list[Server]]:
    before = [(each, each.config_file.read_text()) for each in lab.servers]
    yield lab.servers
    for server, text in before:
        server.config_file.write_text(text)
        reload(server)


@pytest.fixture
def servers(quiet_lab: Lab) -> Iterator[list[Server]]:
    yield from restored(quiet_lab)


def change(server: Server, changing: Change) -> None:
    sections = yaml.safe_load(server.config_file.read_text())
    changing(sections)
    server.config_file.write_text(yaml.safe_dump(sections))
    reload(server)


def reload(server: Server) -> None:
    begun = len(events(server))
    server.process.signal(signal.SIGHUP)
    eventually(lambda: len(events(server)) > begun)


def events(server: Server) -> list[str]:
    lines = server.process.log_file.read_text().splitlines()
    return [
        line
        for line in lines
        if "configuration reloaded" in line or "configuration not reloaded" in line
    ]


@pytest.mark.story
@pytest.mark.spec("LIMIT-3", "OPS-6")
def test_a_limit_changes_while_a_stream_is_open_and_a_broken_file_changes_nothing(
    quiet_lab: Lab, servers: list[Server], alice: Person
) -> None:
    job = quiet_lab.sbatch("alice", wrap=script("r", 6000, pause_s=0.05))
    quiet_lab.wait_job_state(job, "RUNNING")
    command = ["lattice", "logs", str(job), "--follow"]
    following = quiet_lab.popen_as("alice", command, env=alice.bearer)
    eventually(lambda: select.select([following.stdout], [], [], 0)[0])

    def one_stream(sections: dict[str, Any]) -> None:
        sections["rate_limits"] = {"stream_logs_max_concurrent": 1}
        sections["cluster"] = {"name": "renamed"}

    for server in servers:
        change(server, one_stream)
        assert "needs a restart: cluster.name" in server.process.log_file.read_text()
    refused = alice.tries("logs", str(job), "--follow")
    assert refused.code == 80, refused
    assert "(1/1)" in refused.err

    def broken(sections: dict[str, Any]) -> None:
        sections["rate_limits"] = {"stream_logs_max_concurrent": "many"}

    for server in servers:
        change(server, broken)
        assert "stream_logs_max_concurrent" in events(server)[-1]
    assert alice.tries("logs", str(job), "--follow").code == 80, "the values before hold"

    seen = len(alice.tries("logs", str(job)).out.splitlines())
    quiet_lab.jobs.cancel(job)
    out, err = following.communicate(timeout=60)
    assert following.returncode == 0, err
    found = numbers(out.splitlines(), "r")
    assert found == list(range(len(found))), "the open stream did not drop"
    assert len(found) >= seen
