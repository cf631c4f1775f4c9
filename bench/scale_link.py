"""Thousands of agents on two replicas: what a link costs, and how fast all of them link again.

    just bench scale-link [--agents 2000] [--rounds 7]

The agents are simulated only in that many live in one process; each has its own certificate, its
own TLS connection, its own link and pings, to replicas that publish every link in a real etcd. Of
2 000 agents about 1 000 lose their replica when one of two is killed. The agents share the machine
with the replicas, so a relink takes as long as the work of both: each side has its own figure of
processor time. Each round has replicas and agents of its own.

`--alone` needs no lab: one replica with its state in memory, and what an idle link costs it. Agents
have no other replica for a standby connection.

One JSON line a figure. Figures for 10 000 nodes are straight lines through the measured ones.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, load, measured, say
from bench.measuring import Part, allow_many_files, processor_s, quiet, resident_kb
from lab.laboratory import Lab
from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import open_etcd
from lattice.domain.state import StateStore
from tests.integration.link.site import Agent, Server, Site

ROUNDS = 7
PROCESSES = 2
SETTLE_S, IDLE_S = 25.0, 30.0
"""Until every agent has made its standby connection, and as long as the rarest ping is apart."""
TARGET = 10_000
RELINK_GOAL_S = 5.0
IDLE_GOAL_US, MEMORY_GOAL_KIB = 50.0, 100.0
_REPORT_S = 0.05
_LINKED_WITHIN_S = 180.0
_FORGOTTEN_S = 20.0
"""Until the leases of a round have ended, and with them all that it published."""


async def replica(folder: Path, name: str, *etcd: str) -> None:
    """Reports how many links it holds and has published. Without an etcd its state is in memory."""
    site = Site(folder)
    async with AsyncExitStack() as stack:
        store: StateStore | None = None
        if etcd:
            endpoints, tls = etcd[:-3], EtcdTls(*map(Path, etcd[-3:]))
            store = await stack.enter_async_context(open_etcd(endpoints, tls, site.clock))
        server = Server(site, name, store=store)
        await server.start()
        while True:
            held = server.hub.held.values()
            published = sum(each.published for each in held)
            say({"port": server.port, "held": len(held), "published": published})
            await asyncio.sleep(_REPORT_S)


async def agents(folder: Path, prefix: str, first: str, count: str, *ports: str) -> None:
    """Start at the first line of the input, all at once."""
    site = Site(folder)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    crowd = [
        Agent(site, f"{prefix}{int(first) + number:05d}", addresses, seed=number)
        for number in range(int(count))
    ]
    say({"made": len(crowd)})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for agent in crowd:
        agent.start()
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Round:
    """What was measured of one pair of replicas and their agents."""

    links: int
    linked_s: float
    memory_kib: float
    """Of all links."""
    idle_cores: float
    lost: int
    """Links of the replica that was killed."""
    held_s: float
    published_s: float
    server_s: float
    """Processor time of the replica that is left, until it holds all links."""
    agents_s: float
    """Processor time of the agents' processes meanwhile."""
    full_kib: float


def measured_round(folder: Path, number: int, count: int, etcd: Sequence[str]) -> Round:
    """With names of its own, so that no round meets what another has published."""
    with ExitStack() as stack:

        def part(role: str, *given: str) -> Part:
            made = Part("bench.scale_link", "--role", role, str(folder), *given)
            stack.callback(made.end)
            made.until(bool, 60)
            return made

        replicas = [part("replica", f"{each}{number}", *etcd) for each in ("a", "b")]
        ports = [str(each.last["port"]) for each in replicas]
        share = count // PROCESSES
        crowds = [
            part("agents", f"r{number}s", str(index * share), str(share), *ports)
            for index in range(PROCESSES)
        ]
        return _measure(replicas, crowds, share * PROCESSES)


def _measure(replicas: Sequence[Part], crowds: Sequence[Part], count: int) -> Round:
    pids = [each.process.pid for each in replicas]
    empty_kb, begun = sum(map(resident_kb, pids)), time.monotonic()
    for crowd in crowds:
        crowd.tell("go")
    _until_published(replicas, count)
    linked_s = time.monotonic() - begun
    full_kb = sum(map(resident_kb, pids))
    time.sleep(SETTLE_S)
    idle_s = _used_s(replicas)
    time.sleep(IDLE_S)
    idle_s = _used_s(replicas) - idle_s
    killed, left = replicas
    lost = killed.last["held"]
    server_s, agents_s = _used_s([left]), _used_s(crowds)
    begun = time.monotonic()
    killed.end()
    left.until(lambda state: state["held"] >= count, _LINKED_WITHIN_S)
    held_s = time.monotonic() - begun
    server_s, agents_s = _used_s([left]) - server_s, _used_s(crowds) - agents_s
    left.until(lambda state: state["published"] >= count, _LINKED_WITHIN_S)
    return Round(
        links=count,
        linked_s=linked_s,
        memory_kib=full_kb - empty_kb,
        idle_cores=idle_s / IDLE_S,
        lost=lost,
        held_s=held_s,
        published_s=time.monotonic() - begun,
        server_s=server_s,
        agents_s=agents_s,
        full_kib=resident_kb(left.process.pid),
    )


def alone(count: int, rounds: int) -> int:
    """What an idle link costs a replica."""
    idle_us, memory_kib = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            Site(Path(folder))
            made = Part("bench.scale_link", "--role", "replica", folder, "a")
            stack.callback(made.end)
            made.until(bool, 60)
            role = ("--role", "agents", folder, "s", "0", str(count), str(made.last["port"]))
            crowd = Part("bench.scale_link", *role)
            stack.callback(crowd.end)
            crowd.until(bool, 60)
            empty_kb = resident_kb(made.process.pid)
            crowd.tell("go")
            _until_published([made], count)
            time.sleep(SETTLE_S)
            memory_kib.append((resident_kb(made.process.pid) - empty_kb) / count)
            used_s = _used_s([made])
            time.sleep(IDLE_S)
            idle_us.append((_used_s([made]) - used_s) / IDLE_S / count * 1e6)
    shown = [
        measured("a link alone: processor, idle", "µs/s", idle_us, at_most=IDLE_GOAL_US),
        measured("a link alone: memory", "KiB", memory_kib, at_most=MEMORY_GOAL_KIB),
    ]
    for figure in shown:
        figure.print(rounds=rounds, links=count, load=load(), cores=os.cpu_count())
    return 0 if all(each.ok is not False for each in shown) else 1


def _used_s(parts: Sequence[Part]) -> float:
    return sum(processor_s(each.process.pid) for each in parts)


def _until_published(replicas: Sequence[Part], count: int) -> None:
    deadline = time.monotonic() + _LINKED_WITHIN_S
    while sum(each.last["published"] for each in replicas) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {[each.last for each in replicas]}")
        time.sleep(_REPORT_S)


def figures(rounds: Sequence[Round]) -> list[Figure]:
    """The medians of the rounds."""
    relink = "processor time of a relink after a replica's death"
    idle_us = [each.idle_cores / each.links * 1e6 for each in rounds]
    memory_kib = [each.memory_kib / each.links for each in rounds]
    again_ms = [each.held_s / each.lost * 1000 for each in rounds]
    idle, memory, again = map(statistics.median, (idle_us, memory_kib, again_ms))
    return [
        measured("links", "links", [each.links for each in rounds]),
        measured("links of the replica that died", "links", [each.lost for each in rounds]),
        measured("all linked and published, from nothing", "s", [each.linked_s for each in rounds]),
        measured("replica memory a link", "KiB", memory_kib),
        measured("replica processor a link, idle", "µs/s", idle_us),
        measured(
            "all linked again after a replica's death",
            "s",
            [each.held_s for each in rounds],
            at_most=RELINK_GOAL_S,
        ),
        measured(
            "all published again after a replica's death",
            "s",
            [each.published_s for each in rounds],
        ),
        measured(f"{relink}, the server", "s", [each.server_s for each in rounds]),
        measured(f"{relink}, the agents", "s", [each.agents_s for each in rounds]),
        measured(
            f"{relink}, the server a link",
            "ms",
            [each.server_s / each.lost * 1e3 for each in rounds],
        ),
        measured(
            f"{relink}, the agents a link",
            "ms",
            [each.agents_s / each.lost * 1e3 for each in rounds],
        ),
        measured(
            "memory of the replica that holds all", "MiB", [each.full_kib / 1024 for each in rounds]
        ),
        _extrapolated(f"processors for {TARGET} idle links", idle * TARGET / 1e6, "cores"),
        _extrapolated(f"memory for {TARGET} links", memory * TARGET / 1024, "MiB"),
        _extrapolated(f"{TARGET} linked again", again * TARGET / 1000, "s"),
    ]


def _extrapolated(name: str, value: float, unit: str) -> Figure:
    return Figure(name=f"extrapolated: {name}", value=value, unit=unit)


def inside(count: int, rounds: int, etcd: Sequence[str]) -> int:
    """In the network of the etcd."""
    found = []
    for number in range(rounds):
        time.sleep(_FORGOTTEN_S if number else 0.0)
        with tempfile.TemporaryDirectory() as name:
            Site(Path(name))
            found.append(measured_round(Path(name), number, count, etcd))
        print(f"round {number}: {found[-1]}", file=sys.stderr, flush=True)
    shown = figures(found)
    for figure in shown:
        figure.print(rounds=rounds, load=load(), cores=os.cpu_count())
    return 0 if all(each.ok is not False for each in shown) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.scale_link", description=__doc__)
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="7 for a result")
    parser.add_argument("--alone", action="store_true", help="one replica, without the lab")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("given", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    allow_many_files()
    if asked.role == "inside":
        return inside(asked.agents, asked.rounds, asked.given)
    if asked.role:
        quiet()
        asyncio.run(globals()[asked.role](Path(asked.given[0]), *asked.given[1:]))
        return 0
    if asked.alone:
        return alone(asked.agents, asked.rounds)
    lab = Lab("benchlink", parts=("etcd",))
    try:
        lab.up()
        client = lab.etcd.client
        files = [str(each) for each in (client.authority, client.certificate, client.key)]
        enter = ["nsenter", f"--net={lab.network.control_file}"]
        again = [sys.executable, "-m", "bench.scale_link", "--role", "inside"]
        again += ["--agents", str(asked.agents), "--rounds", str(asked.rounds)]
        again += [*lab.etcd.endpoints, *files]
        return subprocess.run([*enter, *again], check=False).returncode
    finally:
        lab.down(purge=True)


if __name__ == "__main__":
    sys.exit(main())
