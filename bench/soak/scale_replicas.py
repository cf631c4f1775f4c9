"""The replicas of `just soak scale`: the real program, with listeners and TLS, on a real etcd."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trustme
import yaml

from bench.measuring import HERE, processor_s, resident_kb
from bench.soak.scale_etcd import RunningEtcd
from tests.fakes.server import AUDIENCE, SECRET
from tests.integration.link.site import CLUSTER, free_port

PEOPLE_CA = "people-ca.pem"
_PROGRAM = Path(sys.executable).parent / "lattice-server"
_READY_WITHIN_S = 180.0


class Replica:
    """One `lattice-server`, in a folder of its own."""

    def __init__(self, name: str, folder: Path, sections: Mapping[str, Any]) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.rest, self.agents, self._metrics = free_port(), free_port(), free_port()
        self.config = self.folder / "config.yaml"
        api = sections["api"] | {
            "rest_listen": f"{HERE}:{self.rest}",
            "grpc_listen": f"{HERE}:{free_port()}",
            "agent_listen": f"{HERE}:{self.agents}",
            "lane_listen": f"{HERE}:{free_port()}",
            "metrics_listen": f"{HERE}:{self._metrics}",
        }
        self.config.write_text(yaml.safe_dump({**sections, "api": api}))
        self.config.chmod(0o600)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://{HERE}:{self.rest}"

    @property
    def agent_address(self) -> str:
        return f"{HERE}:{self.agents}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def bootstrap(self) -> None:
        self._run("--bootstrap")

    def _run(self, *options: str) -> None:
        argv = [str(_PROGRAM), "--config", str(self.config), *options]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"lattice-server {options}: {done.stdout}{done.stderr}")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(_PROGRAM), "--config", str(self.config)],
                stdout=log,
                stderr=log,
                env=os.environ | {"HOME": str(self.folder)},
            )

    def wait(self) -> None:
        """Until it has read Slurm."""
        deadline = time.monotonic() + _READY_WITHIN_S
        while not self.metrics().get('lattice_engine_up{engine="slurmctld"}'):
            if time.monotonic() > deadline or not self.runs:
                log = (self.folder / "log").read_text()[-3000:]
                raise SystemExit(f"{self.name} is not ready: {self.metrics()}\n{log}")
            time.sleep(0.5)

    def kill(self) -> None:
        """At once, as a machine that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def used_s(self) -> float:
        """Of this process; a `squeue` that it has run is apart."""
        assert self._process is not None
        return processor_s(self._process.pid)

    @property
    def commands_s(self) -> float:
        """Processor time of the commands of Slurm that have ended."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[13]) + int(stat[14])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mib(self) -> float:
        assert self._process is not None
        return resident_kb(self._process.pid) / 1024

    def metrics(self) -> dict[str, float]:
        """Its own figures; none while it does not answer."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        found: dict[str, float] = {}
        with (
            suppress(OSError),
            opener.open(f"http://{HERE}:{self._metrics}/metrics", timeout=20) as answer,
        ):
            for line in answer.read().decode().splitlines():
                if not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    found[name] = float(value)
        return found


def replicas(
    folder: Path, etcd: RunningEtcd, commands: Path, socket: Path, store: str, count: int
) -> list[Replica]:
    """Configured, not started. The folder has the cluster's authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / PEOPLE_CA))
    leaf = authority.issue_cert(HERE)
    leaf.private_key_pem.write_to_path(str(folder / "people.key"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / "people.crt"))
    (folder / "people.key").chmod(0o600)
    sections = {
        "cluster": {"name": CLUSTER},
        "api": {
            "tls_cert": str(folder / "people.crt"),
            "tls_key": str(folder / "people.key"),
            "oidc_hmac_secret": SECRET.decode(),
            "oidc_audience": AUDIENCE,
        },
        "identity": {
            "ca_cert": str(folder / "ca.crt"),
            "ca_key": str(folder / "ca.key"),
            "grant_key": str(folder / "grant.key"),
        },
        "slurm": {
            "rest_url": f"unix:{socket}",
            "bin_dir": str(commands),
            "job_list": "squeue",
        },
        "quorum": {
            "endpoints": list(etcd.endpoints),
            "ca": str(etcd.authority),
            "cert": str(etcd.certificate),
            "key": str(etcd.key),
        },
        "objects": {"url": f"file://{folder}/objects"},
        "telemetry": {"tsdb_endpoint": store},
    }
    # The replicas share the folder, as they share this machine.
    (folder / "objects").mkdir()
    return [Replica(f"r{number}", folder, sections) for number in range(1, count + 1)]
