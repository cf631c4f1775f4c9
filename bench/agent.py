"""What an agent costs its node while it measures jobs, against node_exporter on the same node.

    just bench agent [--rounds 9] [--seconds 10] [--jobs 1] [--processes 8]

Real are the agent and the helper, each a process as on a node, the kernel's control groups named as
Slurm names them, the job's processes, and the server that the samples are sent to. Every second the
agent reads and sends all of its jobs (debug), and half a second later node_exporter is scraped as
Prometheus does it; both are in control groups of their own, which count their processor time to the
nanosecond. Memory is that of the page frames which the processes have, each counted once however
many share it. As root. One JSON line a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import os
import pwd
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from bench.logs_pipeline import paired
from bench.measuring import HERE, Part, StillScheduler, program, say, serving
from bench.poll import Figure
from lab import users
from lab.agent import EXECUTABLE, configuration
from lab.files import give, owned_folder
from lab.helper import helper_argv
from lab.room import SYSTEM_PATH, become
from lab.shelter import kept_paths
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.agent.identity_store import new_request
from lattice.base.clock import SystemClock
from lattice.base.signing import SigningKey
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.service.modes import SwitchedMode
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.integration.link.site import free_port

ROUNDS = 9
CPU_GOAL, MEMORY_GOAL, CORE_GOAL_PERCENT = 0.8, 4.0, 1.0
_NODE = f"bench{os.getpid()}"
_OWNER = "alice"
_CGROUP = Path("/sys/fs/cgroup")
_V2 = (_CGROUP / "cgroup.controllers").exists()
_TREES = ("freezer", "cpuacct", "memory", "cpuset")
"""Of v1: those that Slurm makes with the usual settings."""
_JOIN = 'for each in $1; do echo $$ >"$each" || exit 125; done; shift; exec "$@"'
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
_LIFE_SIGN = f"{PREFIX}cpu_seconds_total"
_SETTLE_S = 30.0
_MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PRESENT, _FRAME = 1 << 63, (1 << 55) - 1
_TELL_S = 0.25


class Account:
    """A control group that counts what is used in it."""

    def __init__(self, name: str) -> None:
        base = _CGROUP if _V2 else _CGROUP / "cpuacct"
        self._folder = base / f"lattice-{_NODE}-{name}"
        self._folder.mkdir()

    @property
    def join(self) -> str:
        return str(self._folder / "cgroup.procs")

    @property
    def pids(self) -> list[int]:
        return [int(each) for each in (self._folder / "cgroup.procs").read_text().split()]

    def used_s(self) -> float:
        """Processor time, of those that have ended too."""
        if not _V2:
            return int((self._folder / "cpuacct.usage").read_text()) / 1e9
        told = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(told["usage_usec"]) / 1e6

    def close(self) -> None:
        removed(self._folder)


def removed(folder: Path) -> None:
    """A control group, as soon as it is empty."""
    deadline = time.monotonic() + 5
    while folder.is_dir() and time.monotonic() < deadline:
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)


class SlurmJobs:
    """Jobs without Slurm: control groups with its names, and somebody's processes in them."""

    def __init__(self) -> None:
        self._made: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, job: int, processes: int) -> None:
        uid = pwd.getpwnam(_OWNER).pw_uid
        if _V2:
            top = _CGROUP / "system.slice" / f"{_NODE}_slurmstepd.scope"
            leaves = [self._group(top, f"job_{job}", "step_0", "user", "task_0")]
        else:
            leaves = []
            for tree in _TREES:
                top = _CGROUP / tree / f"slurm_{_NODE}"
                task = ("task_0",) if tree != "freezer" else ()
                leaves.append(self._group(top, f"uid_{uid}", f"job_{job}", "step_0", *task))
        joined = " ".join(str(each / "cgroup.procs") for each in leaves)
        sleep = [*become(_OWNER), "sleep", "infinity"]
        for _ in range(processes):
            words = ["/bin/sh", "-c", _JOIN, "join", joined, *sleep]
            quiet = subprocess.DEVNULL
            self._processes.append(
                subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/")
            )

    def _group(self, top: Path, *below: str) -> Path:
        folder = top
        for name in ("", *below):
            folder = folder / name
            if not folder.exists():
                folder.mkdir(parents=True)
                self._made.append(folder)
                _open_up(folder)
                # As Slurm does, at which the kernel writes down when the group was made.
                os.chown(folder, 0, 0)
        return folder

    def close(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()
        for folder in reversed(self._made):
            removed(folder)


def _open_up(folder: Path) -> None:
    if _V2:
        with suppress(OSError):
            (folder.parent / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
    elif folder.is_relative_to(_CGROUP / "cpuset"):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text((folder.parent / name).read_text())


class Tally(InMemoryMetricStore):
    """A store that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0
        self.moments = 0

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        self.samples += sum(len(each.points) for each in series)
        self.moments += sum(
            len(each.points) for each in series if each.labels["__name__"] == _LIFE_SIGN
        )


async def serve(folder: Path, port: int, node: str, jobs: int, began: float) -> None:
    """The server. A line on its input has all jobs measured every second."""
    scheduler = StillScheduler(SystemClock())
    scheduler.accounts = ACCOUNTS
    start = datetime.fromtimestamp(began, UTC)
    scheduler.allocations = [
        allocation(
            number,
            _OWNER,
            "research",
            submitted=start - timedelta(minutes=10),
            started=start,
            nodes=node,
        )
        for number in range(1, jobs + 1)
    ]
    tally = Tally()
    asked = threading.Event()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    async with serving(folder, port, scheduler, tally) as intake:
        debug = False
        while True:
            if asked.is_set() and not debug:
                debug = True
                now = time.time()
                for each in scheduler.allocations:
                    await intake.modes.switch(
                        SwitchedMode(
                            allocation=each.ref,
                            mode=Mode.DEBUG,
                            until=now + 3600,
                            set_by=_OWNER,
                            since=now,
                        )
                    )
            say({"samples": tally.samples, "moments": tally.moments})
            await asyncio.sleep(_TELL_S)


def _listen(asked: threading.Event) -> None:
    if sys.stdin.readline():
        asked.set()
        sys.stdin.read()
    os._exit(0)


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
        told = configuration(_NODE, folder / "agent", folder, folder / "helper/socket")
        told |= {"replicas": [f"{HERE}:{port}"]}
        del told["slurmd"]
        signer = ClusterAuthority.load(authority / "ca.crt", authority / "ca.key", SystemClock())
        key, request = new_request(_NODE)
        certificate = signer.sign_node(request.encode(), _NODE, timedelta(days=1)).pem.decode()
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
        self._start(self.helper, "helper", helper_argv(_NODE, self._folder / "helper"))
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
                    ["/bin/sh", "-c", _JOIN, "join", account.join, *words],
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
            ["/bin/sh", "-c", _JOIN, "join", self.account.join, path, listen],
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


def frames(pids: Sequence[int]) -> int:
    """The memory that these processes have, in bytes: each page frame once."""
    found: set[int] = set()
    for pid in pids:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        pages = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
        try:
            for line in lines:
                begin, end = (int(each, 16) for each in line.split(None, 1)[0].split("-"))
                if begin >= 1 << 63:
                    continue  # the kernel's own page, which is there for everyone
                table = os.pread(pages, (end - begin) // _PAGE * 8, begin // _PAGE * 8)
                words = memoryview(table).cast("Q")
                found.update(each & _FRAME for each in words if each & _PRESENT)
        finally:
            os.close(pages)
    assert found != {0}, "only root is told page frames"
    return len(found) * _PAGE


def shared_out(pids: Sequence[int]) -> int:
    """The same with what is shared divided among all who share it on this machine."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def half_past() -> None:
    """Until the middle between two seconds: agents read at whole ones."""
    now = time.time()
    time.sleep((0.5 - now) % 1 or 1.0)


class Rounds:
    """Processor milliseconds a sample and a scrape, by rounds."""

    def __init__(self, node: Node, exporter: Exporter, server: Part, jobs: int) -> None:
        self._node, self._exporter, self._server = node, exporter, server
        self._jobs = jobs
        self.agent: list[float] = []
        self.helper: list[float] = []
        self.bare: list[float] = []
        self.percent: list[float] = []
        self.samples = 0.0

    @property
    def ours(self) -> list[float]:
        return [a + b for a, b in zip(self.agent, self.helper, strict=True)]

    def run(self, seconds: int) -> None:
        accounts = self._node.agent, self._node.helper, self._exporter.account
        half_past()
        told, begun = self._server.last, time.monotonic()
        before = [each.used_s() for each in accounts]
        for _ in range(seconds):
            self._exporter.scrape()
            half_past()
        used = [each.used_s() - was for each, was in zip(accounts, before, strict=True)]
        took_s = time.monotonic() - begun
        now = self._server.last
        looks = (now["moments"] - told["moments"]) / self._jobs
        if looks < 0.7 * seconds:
            raise SystemExit(f"only {looks:g} samples in {took_s:.0f} s: {self._node.said()}")
        # What is on its way at either end is as much; the moments are those of the wall.
        looks = round(took_s)
        self.samples = (now["samples"] - told["samples"]) / (now["moments"] - told["moments"])
        self.agent.append(used[0] / looks * 1000)
        self.helper.append(used[1] / looks * 1000)
        self.bare.append(used[2] / seconds * 1000)
        self.percent.append((used[0] + used[1]) / took_s * 100)


def usually(node: Node, seconds: int) -> float:
    """The percentage of a core in prod, over so many seconds."""
    accounts = node.agent, node.helper
    before, begun = sum(each.used_s() for each in accounts), time.monotonic()
    time.sleep(seconds)
    used = sum(each.used_s() for each in accounts) - before
    return used / (time.monotonic() - begun) * 100


def measured(node: Node, exporter: Exporter, server: Part, options: argparse.Namespace) -> bool:
    server.until(lambda told: told["moments"] >= options.jobs, 60)
    # What follows a start is over: certificates, a look at what was missed, files of the job.
    time.sleep(_SETTLE_S)
    prod = usually(node, options.prod_seconds) if options.prod_seconds else None
    server.tell("debug")
    moments = server.last["moments"]
    server.until(lambda told: told["moments"] >= moments + 5 * options.jobs, 60)
    rounds = Rounds(node, exporter, server, options.jobs)
    rounds.run(options.seconds)
    for each in (rounds.agent, rounds.helper, rounds.bare, rounds.percent):
        each.clear()
    for _ in range(max(options.rounds, 7)):
        rounds.run(options.seconds)
    facts = {
        "jobs": options.jobs,
        "processes": options.processes,
        "series": round(rounds.samples * options.jobs, 1),
        "rounds": len(rounds.bare),
        "load": round(os.getloadavg()[0], 2),
    }
    told = list(_figures(rounds, node, exporter.account.pids, prod))
    for figure, more in told:
        say(asdict(figure) | more | facts)
    return all(figure.ok is not False for figure, _ in told)


def _figures(
    rounds: Rounds, node: Node, theirs: Sequence[int], prod: float | None
) -> Iterator[tuple[Figure, dict[str, Any]]]:
    bare = rounds.bare
    yield (
        paired(
            "agent and helper: processor time a sample, sent, against a node_exporter scrape",
            "ms",
            rounds.ours,
            bare,
            at_most=CPU_GOAL,
        ),
        {"each_round": [round(each, 2) for each in rounds.ours]},
    )
    yield paired("of which the agent", "ms", rounds.agent, bare), {}
    yield paired("of which the helper", "ms", rounds.helper, bare), {}
    low, middle, high = statistics.quantiles(rounds.percent, n=4)
    yield (
        Figure(
            name="agent and helper: processor time in debug, every second",
            value=middle,
            unit="% of a core",
            low=low,
            high=high,
            goal=CORE_GOAL_PERCENT,
            ok=middle <= CORE_GOAL_PERCENT,
        ),
        {},
    )
    if prod is not None:
        yield (
            Figure(
                name="agent and helper: processor time in prod, every 30 s",
                value=prod,
                unit="% of a core",
            ),
            {},
        )
    agent, helper = node.agent.pids, node.helper.pids
    pids = [*agent, *helper]
    mine, other = frames(pids) / _MIB, frames(theirs) / _MIB
    yield (
        Figure(
            name="agent and helper: resident memory, against node_exporter's",
            value=mine,
            unit="MiB",
            bare=other,
            ratio=mine / other,
            goal=MEMORY_GOAL,
            ok=mine / other <= MEMORY_GOAL,
        ),
        {
            "agent_mib": round(frames(agent) / _MIB, 2),
            "helper_mib": round(frames(helper) / _MIB, 2),
            "pss": round(shared_out(pids) / _MIB, 2),
            "bare_pss": round(shared_out(theirs) / _MIB, 2),
            "parts": len(pids),
        },
    )


@contextmanager
def place() -> Iterator[Path]:
    """A folder that the agent's account can reach."""
    folder = Path("/run") / f"lattice-{_NODE}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise SystemExit("the helper and control groups need root")
    users.ensure_accounts()
    with ExitStack() as stack:
        folder = stack.enter_context(place())
        authority = folder / "authority"
        authority.mkdir(mode=0o700)
        paths = IdentityPaths(*(authority / each for each in ("ca.crt", "ca.key", "grant.key")))
        create_identity(paths, SystemClock(), name="bench")
        jobs = SlurmJobs()
        stack.callback(jobs.close)
        began = time.time()
        for number in range(1, options.jobs + 1):
            jobs.start(number, options.processes)
        exporter = Exporter()
        stack.callback(exporter.close)
        port = free_port()
        words = (str(authority), str(port), _NODE, str(options.jobs), str(began))
        server = Part("bench.agent", "--serve", *words)
        stack.callback(server.end)
        server.until(bool, 30)
        node = Node(folder, authority, port)
        stack.callback(node.close)
        node.up()
        return 0 if measured(node, exporter, server, options) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.agent", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7")
    parser.add_argument("--seconds", type=int, default=10, help="of a round")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--processes", type=int, default=8, help="of each job")
    parser.add_argument("--prod-seconds", type=int, default=60, help="0: debug alone is measured")
    parser.add_argument("--serve", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is None:
        return run(options)
    folder, port, node, jobs, began = options.serve
    asyncio.run(serve(Path(folder), int(port), node, int(jobs), float(began)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
