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
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.agent_groups import NODE, OWNER, SlurmJobs
from bench.agent_memory import Memory, memory_of
from bench.agent_node import Exporter, Node, place
from bench.figures import Figure, load, measured, paired, say
from bench.measuring import TELL_S, Part, free_port
from bench.simulated import StillScheduler, serving
from lab import users
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.base.clock import SystemClock
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.service.modes import SwitchedMode
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_metrics import InMemoryMetricStore

ROUNDS = 9
CPU_GOAL, MEMORY_GOAL, CORE_GOAL_PERCENT = 0.8, 3.8, 1.0
LATER_MEMORY_GOAL = 3.2
_LIFE_SIGN = f"{PREFIX}cpu_seconds_total"
_SETTLE_S = 30.0


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
            OWNER,
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
                            set_by=OWNER,
                            since=now,
                        )
                    )
            say({"samples": tally.samples, "moments": tally.moments})
            await asyncio.sleep(TELL_S)


def _listen(asked: threading.Event) -> None:
    if sys.stdin.readline():
        asked.set()
        sys.stdin.read()
    os._exit(0)


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
        self.memory: dict[str, list[Memory]] = {"ours": [], "agent": [], "helper": [], "bare": []}
        self.samples = 0.0

    @property
    def ours(self) -> list[float]:
        return [a + b for a, b in zip(self.agent, self.helper, strict=True)]

    def clear(self) -> None:
        """Forget what was measured: it warmed."""
        for times in (self.agent, self.helper, self.bare, self.percent):
            times.clear()
        for sizes in self.memory.values():
            sizes.clear()

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
        agent, helper = self._node.agent.pids, self._node.helper.pids
        groups = {"ours": [*agent, *helper], "agent": agent, "helper": helper}
        for name, pids in (groups | {"bare": self._exporter.account.pids}).items():
            self.memory[name].append(memory_of(pids))


def usually(node: Node, seconds: int) -> float:
    """The percentage of a core in prod, over so many seconds."""
    accounts = node.agent, node.helper
    before, begun = sum(each.used_s() for each in accounts), time.monotonic()
    time.sleep(seconds)
    used = sum(each.used_s() for each in accounts) - before
    return used / (time.monotonic() - begun) * 100


def reported(node: Node, exporter: Exporter, server: Part, options: argparse.Namespace) -> bool:
    server.until(lambda told: told["moments"] >= options.jobs, 60)
    # What follows a start is over: certificates, a look at what was missed, files of the job.
    time.sleep(_SETTLE_S)
    prod = usually(node, options.prod_seconds) if options.prod_seconds else None
    server.tell("debug")
    moments = server.last["moments"]
    server.until(lambda told: told["moments"] >= moments + 5 * options.jobs, 60)
    rounds = Rounds(node, exporter, server, options.jobs)
    rounds.run(options.seconds)
    rounds.clear()
    for _ in range(max(options.rounds, 7)):
        rounds.run(options.seconds)
    facts = {
        "jobs": options.jobs,
        "processes": options.processes,
        "series": round(rounds.samples * options.jobs, 1),
        "rounds": len(rounds.bare),
        "load": load(),
    }
    told = [*_figures(rounds, prod), *_memory_figures(rounds.memory)]
    for figure, more in told:
        figure.print(**more, **facts)
    return all(figure.ok is not False for figure, _ in told)


def _figures(rounds: Rounds, prod: float | None) -> Iterator[tuple[Figure, dict[str, Any]]]:
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
    yield (
        measured(
            "agent and helper: processor time in debug, every second",
            "% of a core",
            rounds.percent,
            at_most=CORE_GOAL_PERCENT,
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


def _memory_figures(
    memory: Mapping[str, Sequence[Memory]],
) -> Iterator[tuple[Figure, dict[str, Any]]]:
    """`memory` has `ours`, `agent`, `helper` and `bare`, by rounds."""

    def figure(name: str, group: str, kind: str, at_most: float | None = None) -> Figure:
        ours, bare = ([getattr(each, kind) for each in memory[of]] for of in (group, "bare"))
        return paired(f"{name}, against node_exporter's", "MiB", ours, bare, at_most=at_most)

    both = "agent and helper"
    yield (
        figure(f"{both}: resident memory", "ours", "resident", MEMORY_GOAL),
        {"later_goal": LATER_MEMORY_GOAL, "parts": memory["ours"][-1].processes},
    )
    yield figure(f"{both}: PSS", "ours", "pss"), {}
    yield figure(f"{both}: USS", "ours", "uss"), {}
    yield figure("agent alone: resident memory", "agent", "resident"), {}
    yield figure("helper alone: resident memory", "helper", "resident"), {}


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
        words = (str(authority), str(port), NODE, str(options.jobs), str(began))
        server = Part("bench.agent", "--serve", *words)
        stack.callback(server.end)
        server.until(bool, 30)
        node = Node(folder, authority, port)
        stack.callback(node.close)
        node.up()
        return 0 if reported(node, exporter, server, options) else 1


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
