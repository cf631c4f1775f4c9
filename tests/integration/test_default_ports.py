"""A server with nothing but its defaults, in a network of its own: the ports that people know."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually

PROGRAM = Path(sys.prefix) / "bin" / "lattice-server"
LISTENING = "0A"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    config = tmp_path / "server.yaml"
    config.write_text(
        "cluster: {name: x}\n"
        "api: {agent_advertise: '192.0.2.1:50052'}\n"
        f"slurm: {{rest_url: 'unix:{tmp_path}/none.sock'}}\n"
    )
    begin = 'ip link set lo up && exec "$0" --config "$1" --single "$2"'
    with (tmp_path / "log").open("wb") as log:
        argv = ["unshare", "--net", "sh", "-c", begin, PROGRAM, config, tmp_path / "state"]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def listening(pid: int) -> set[int]:
    """The ports of the network that the process is in."""
    table = Path(f"/proc/{pid}/net/tcp").read_text()
    table += Path(f"/proc/{pid}/net/tcp6").read_text()
    return {
        int(port, 16)
        for port, state in re.findall(r"\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ (\w\w)", table)
        if state == LISTENING
    }


@pytest.mark.story
@pytest.mark.spec("OPS-11")
def test_a_server_listens_where_people_expect_it(server: subprocess.Popen[bytes]) -> None:
    eventually(lambda: listening(server.pid), lambda ports: ports == {8080, 50051, 50052, 50053})
