"""What `bench.agent` measures: agent and helper of a node, and node_exporter beside them."""

from __future__ import annotations

import base64
import http.client
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import yaml

from bench.agent_groups import JOIN, NODE, Account
from bench.measuring import HERE, free_port, program
from lab import users
from lab.agent import EXECUTABLE, configuration
from lab.files import give, owned_folder
from lab.helper import helper_argv
from lab.room import SYSTEM_PATH, become
from lab.shelter import kept_paths
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.agent.certificates import LocalCertificates
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey

_REACHABLE = """
set -e
held=$1; shift; paths=$1; shift
number=0
for path in $paths; do
  mkdir -p "$held/$number"; mount --bind "$path" "$held/$number"; number=$((number + 1))
done
mount -t tmpfs -o mode=755 tmpfs /root
number=0
for path in $paths; do
  mkdir -p "$path"; mount --move "$held/$number" "$path"; number=$((number + 1))
done
exec "$@"
"""
"""A Python in root's home, for an account that may not enter it: as the lab's rooms have it."""


@contextmanager
def place() -> Iterator[Path]:
    """A folder that the agent's account can reach."""
    folder = Path("/run") / f"lattice-{NODE}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Node:
    """The agent and the helper of one node."""

    def __init__(self, folder: Path, authority: Path, port: int) -> None:
        self.agent, self.helper = Account("agent"), Account("helper")
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        for name in ("agent", "agent/state"):
            owned_folder(folder / name, users.AGENT_USER)
        (folder / "helper").mkdir(mode=0o755)
        public = SigningKey.load(authority / "grant.key").public
        (folder / "helper/grant-keys").write_text(base64.b64encode(public).decode() + "\n")
        told = configuration(NODE, folder / "agent", folder, folder / "helper/socket")
        told |= {"replicas": [f"{HERE}:{port}"]}
        del told["slurmd"]
        signer = ClusterAuthority.load(authority / "ca.crt", authority / "ca.key", SystemClock())
        key, request = LocalCertificates().new_request(NODE)
        certificate = signer.sign_node(request.encode(), NODE, timedelta(days=1)).pem.decode()
        for name, text in (
            ("agent.yaml", yaml.safe_dump(told)),
            ("boot.crt", certificate),
            ("boot.key", key),
            ("ca.crt", signer.bundle.decode()),
        ):
            file = folder / "agent" / name
            file.touch(mode=0o600)
            file.write_text(text)
            give(file, users.AGENT_USER)

    def up(self) -> None:
        self._start(self.helper, "helper", helper_argv(NODE, self._folder / "helper"))
        socket = self._folder / "helper/socket"
        deadline = time.monotonic() + 30
        while not socket.exists():
            if time.monotonic() > deadline:
                raise SystemExit((self._folder / "helper.log").read_text())
            time.sleep(0.05)
        words = [str(EXECUTABLE), "--config", str(self._folder / "agent/agent.yaml")]
        words = [*become(users.AGENT_USER), *words]
        if paths := kept_paths():
            held = str(self._folder / "held")
            enter = ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c")
            words = [*enter, _REACHABLE, "reachable", held, " ".join(paths), *words]
        self._start(self.agent, "agent", words)

    def _start(self, account: Account, name: str, words: Sequence[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", JOIN, "join", account.join, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"},
                )
            )

    def said(self) -> str:
        return "".join((self._folder / f"{each}.log").read_text() for each in ("helper", "agent"))

    def close(self) -> None:
        for each in reversed(self._running):
            each.terminate()
            each.wait(15)
        for account in (self.agent, self.helper):
            account.close()


class Exporter:
    """node_exporter as Debian has it, scraped over one connection."""

    def __init__(self) -> None:
        path = program("prometheus-node-exporter", "prometheus-node-exporter")
        self.account = Account("exporter")
        port = free_port()
        listen = f"--web.listen-address={HERE}:{port}"
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", JOIN, "join", self.account.join, path, listen],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        self._http = http.client.HTTPConnection(HERE, port, timeout=10)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.scrape()
            except OSError:
                self._http.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                break

    def scrape(self) -> int:
        """How many bytes it told."""
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        self._http.request("GET", "/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"})
        answer = self._http.getresponse()
        body = answer.read()
        assert answer.status == 200, answer.status
        return len(body)

    def close(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait()
        self.account.close()
