"""lattice-server and its state, as programs: begun once, alone, or with an etcd that is away."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.doorway import Doorway
from lab.laboratory import Lab
from tests.eventually import eventually

PROGRAM = Path(sys.prefix) / "bin" / "lattice-server"


class Site:
    """A configuration file, and servers started with it."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.folder = folder
        self.config = folder / "server.yaml"
        ports = _free_ports(3)
        self.url = f"http://127.0.0.1:{ports[0]}/healthz"
        self.config.write_text(
            f"cluster: {{name: x}}\n"
            f"api: {{rest_listen: '127.0.0.1:{ports[0]}', grpc_listen: '127.0.0.1:{ports[1]}', "
            f"agent_listen: '127.0.0.1:{ports[2]}', lane_listen: '127.0.0.1:0'}}\n"
            f"slurm: {{rest_url: 'unix:{folder}/none.sock'}}\n{extra}"
        )

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Until it ends by itself."""
        return subprocess.run(
            [PROGRAM, "--config", self.config, *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @contextmanager
    def serving(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """While it serves."""
        log = (self.folder / "log").open("a+")
        with (
            log,
            subprocess.Popen(
                [PROGRAM, "--config", self.config, *options], stderr=log, text=True
            ) as process,
        ):
            try:
                self.health(process)
                yield process
            finally:
                process.kill()

    def health(self, process: subprocess.Popen[str] | None = None) -> dict[str, Any]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def asked() -> dict[str, Any] | None:
            with suppress(OSError), opener.open(self.url, timeout=60) as answer:
                told: dict[str, Any] = json.load(answer)
                return told
            assert process is None or process.poll() is None, (self.folder / "log").read_text()
            return None

        found = eventually(asked, pause_s=0.05)
        assert found is not None
        return found

    def wait_state(self, wanted: str) -> dict[str, Any]:
        return eventually(self.health, lambda health: health["state"] == wanted, pause_s=0.2)

    def logged(self, event: str) -> list[dict[str, Any]]:
        # Of a line that is just being written there is a part.
        lines = (self.folder / "log").read_text().rpartition("\n")[0].splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in told if each.get("event") == event]


def _free_ports(count: int) -> list[int]:
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [door.getsockname()[1] for door in doors]
    for door in doors:
        door.close()
    return ports


@pytest.mark.story
@pytest.mark.spec("TRY-1")
def test_a_single_server_begins_its_state_and_says_what_it_is(tmp_path: Path) -> None:
    site = Site(tmp_path)
    folder = str(tmp_path / "state")
    with site.serving("--single", folder) as server:
        health = site.wait_state("ok")
        assert "no high availability" in health["note"]
        assert len(site.logged("bootstrapped")) == 1
        assert "no high availability" in site.logged("single server")[0]["note"]
        second = site.run("--single", folder)
        assert second.returncode == 78
        assert f"process {server.pid}" in second.stderr
        assert "Hint: " in second.stderr
        server.send_signal(signal.SIGKILL)
        server.wait()
    with site.serving("--single", folder):
        site.wait_state("ok")
        first, again = (each["cluster"] for each in site.logged("agreed state"))
        assert first == again
        assert len(site.logged("bootstrapped")) == 1


@pytest.mark.spec("DIAG-4")
@pytest.mark.parametrize("wanted", [False, True])
def test_failed_nodes_are_drained_only_where_the_site_says_so(tmp_path: Path, wanted: bool) -> None:
    site = Site(tmp_path, "node_agent: {drain_failed: true}\n" if wanted else "")
    with site.serving("--single", str(tmp_path / "state")):
        site.wait_state("ok")
        told = [each["most_per_hour"] for each in site.logged("failed nodes are drained")]
        assert told == ([4] if wanted else [])


@pytest.mark.story
@pytest.mark.spec("OPS-1")
def test_a_server_without_state_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.serving():
        assert site.health()["state"] == "none"
        assert "--single" in site.logged("no agreed state")[0]["hint"]


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, "quorum: {endpoints: ['http://127.0.0.1:1']}\n")
    both = site.run("--single", str(tmp_path / "state"))
    assert both.returncode == 78
    assert "quorum.endpoints" in both.stderr
    assert site.run("--single", "x", "--bootstrap").returncode == 2
    alone = Site(tmp_path)
    refused = alone.run("--bootstrap")
    assert refused.returncode == 78
    assert "quorum.endpoints" in refused.stderr


def _bootstrap_without_etcd(tmp_path: Path) -> float:
    (port,) = _free_ports(1)
    site = Site(tmp_path, f"quorum: {{endpoints: ['http://127.0.0.1:{port}']}}\n")
    began = time.monotonic()
    done = site.run("--bootstrap")
    assert done.returncode == 75
    assert "can't be reached" in done.stderr
    return time.monotonic() - began


@pytest.mark.long
@pytest.mark.spec("OPS-1")
def test_bootstrap_without_etcd_fails(tmp_path: Path) -> None:
    _bootstrap_without_etcd(tmp_path)


@pytest.mark.timing
@pytest.mark.long
@pytest.mark.spec("OPS-1")
def test_bootstrap_without_etcd_fails_within_40_s(tmp_path: Path) -> None:
    # Five seconds are etcd's; the rest is for a slow machine to start a process on.
    assert _bootstrap_without_etcd(tmp_path) < 40


@pytest.mark.lab
@pytest.mark.spec("OPS-1")
@pytest.mark.timeout(180)
@pytest.mark.long
def test_a_cluster_is_begun_once_and_outlives_its_etcd(
    tmp_path: Path, etcd_lab: Lab, etcd_doorway: Doorway
) -> None:
    client = etcd_lab.etcd.client
    endpoints = [f"https://{each}" for each in etcd_doorway.addresses]
    site = Site(
        tmp_path,
        f"quorum: {{endpoints: {json.dumps(endpoints)}, ca: '{client.authority}',"
        f" cert: '{client.certificate}', key: '{client.key}'}}\n",
    )
    early = site.run()
    assert early.returncode == 78
    assert "--bootstrap" in early.stderr
    begun = site.run("--bootstrap")
    assert begun.returncode == 0, begun.stderr
    twice = site.run("--bootstrap")
    assert twice.returncode == 78
    assert "bootstrapped already" in twice.stderr
    with site.serving():
        health = site.wait_state("ok")
        assert health["note"] == ""
    etcd_doorway.shut()
    try:
        with site.serving():
            assert site.health()["state"] == "away"
            assert "does not answer" in site.health()["note"]
            assert site.health()["status"] == "degraded"
            etcd_doorway.open()
            site.wait_state("ok")
    finally:
        etcd_doorway.open()
