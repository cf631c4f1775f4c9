"""An etcd of three members on loopback, whose clients and peers need certificates. No lab."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trustme

from bench.measuring import HERE, program
from tests.eventually import eventually
from tests.integration.link.site import free_port

MEMBERS = 3


@dataclass(frozen=True, slots=True)
class RunningEtcd:
    """How clients reach it, and its processes."""

    endpoints: Sequence[str]
    authority: Path
    certificate: Path
    key: Path
    pids: Sequence[int]


@contextmanager
def etcd_cluster(folder: Path) -> Iterator[RunningEtcd]:
    """Empty, and with a leader; its state is in the folder."""
    folder.mkdir()
    authority = trustme.CA()
    paths = [folder / name for name in ("ca.pem", "all.crt", "all.key")]
    leaf = authority.issue_cert(HERE, "localhost", common_name="lattice-server")
    authority.cert_pem.write_to_path(str(paths[0]))
    leaf.cert_chain_pems[0].write_to_path(str(paths[1]))
    leaf.private_key_pem.write_to_path(str(paths[2]))
    paths[2].chmod(0o600)
    clients = [f"https://{HERE}:{free_port()}" for _ in range(MEMBERS)]
    peers = [f"https://{HERE}:{free_port()}" for _ in range(MEMBERS)]
    with ExitStack() as stack:
        members = [
            _member(folder, number, clients, peers, paths, stack) for number in range(MEMBERS)
        ]
        for _, health in members:
            eventually(partial(_answers, health))
        pids = [process.pid for process, _ in members]
        yield RunningEtcd(clients, paths[0], paths[1], paths[2], pids)


def _member(
    folder: Path,
    number: int,
    clients: Sequence[str],
    peers: Sequence[str],
    paths: Sequence[Path],
    stack: ExitStack,
) -> tuple[subprocess.Popen[bytes], str]:
    health = f"http://{HERE}:{free_port()}"
    cluster = ",".join(f"m{place}={peer}" for place, peer in enumerate(peers))
    argv = [
        *(program("etcd", "etcd-server"), "--name", f"m{number}"),
        *("--data-dir", str(folder / f"m{number}")),
        *("--listen-client-urls", clients[number], "--advertise-client-urls", clients[number]),
        *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
        *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
        *("--listen-metrics-urls", health, "--logger", "zap", "--log-level", "warn"),
    ]
    for prefix in ("", "peer-"):
        argv += [f"--{prefix}trusted-ca-file", str(paths[0]), f"--{prefix}client-cert-auth"]
        argv += [f"--{prefix}cert-file", str(paths[1]), f"--{prefix}key-file", str(paths[2])]
    with (folder / f"m{number}.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process, f"{health}/health"


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError), opener.open(url, timeout=2):
        return True
    return False
