"""lattice-server as a program: what it says when it can't do as it was told."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

PROGRAM = Path(sys.prefix) / "bin" / "lattice-server"


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize("face", ["rest_listen", "grpc_listen"])
def test_an_address_in_use_is_named(tmp_path: Path, face: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("127.0.0.1", 0)) as spare,
    ):
        other = "grpc_listen" if face == "rest_listen" else "rest_listen"
        free = spare.getsockname()[1]
        spare.close()
        config = tmp_path / "server.yaml"
        config.write_text(
            f"cluster: {{name: x}}\n"
            f"api: {{{face}: '127.0.0.1:{taken.getsockname()[1]}', {other}: '127.0.0.1:{free}'}}\n"
            f"slurm: {{rest_url: 'unix:{tmp_path}/none.sock'}}\n"
        )
        done = subprocess.run(
            [PROGRAM, "--config", config], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 78, done.stderr
    said = done.stderr.splitlines()[-2:]
    assert said[0].startswith(f"127.0.0.1:{taken_port(config, face)} can't be listened on")
    assert said[1].startswith("Hint: ")


def taken_port(config: Path, face: str) -> str:
    return config.read_text().partition(f"{face}: '127.0.0.1:")[2].partition("'")[0]


@pytest.mark.spec("OPS-8")
def test_the_log_is_json_and_quiet_while_slurm_is_away(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        "api: {rest_listen: '127.0.0.1:0', grpc_listen: '127.0.0.1:0', "
        "agent_listen: '127.0.0.1:0', lane_listen: '127.0.0.1:0', "
        "agent_advertise: 'localhost:50052'}\n"
        f"slurm: {{rest_url: 'unix:{tmp_path}/none.sock'}}\n"
    )
    argv = [PROGRAM, "--config", config, "--single", tmp_path / "state"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "serving":
                Timer(10, server.terminate).start()
    assert server.returncode == 0
    for each in lines:
        del each["time"]
    twice = [each for each in lines if lines.count(each) > 1]
    assert not twice
