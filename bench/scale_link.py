"""Thousands of agents on two replicas: what a link costs, and how fast all of them link again.

    just bench scale-link [--agents 2000]

The agents are simulated only in that many live in one process; each has its own certificate, its
own TLS connection, its own link and pings, to replicas that publish every link in a real etcd. One
JSON line a figure. OwnMetrics for 10 000 nodes are straight lines through the measured ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.measuring import allow_many_files, resident_kb
from lab.laboratory import Lab
from lattice.adapters.etcd.members import EtcdTls
from lattice.adapters.etcd.store import open_etcd
from tests.integration.link.site import Agent, Server, Site

PROCESSES = 2
IDLE_S = 30.0
TARGET = 10_000
_TELL_S = 0.1


async def replica(folder: Path, name: str, *etcd: str) -> None:
    endpoints, files = etcd[:-3], [Path(each) for each in etcd[-3:]]
    site = Site(folder)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_etcd(endpoints, EtcdTls(*files), site.clock))
        server = Server(site, name, store=store)
        await server.start()
        while True:
            held = server.hub.held.values()
            told = {
                "port": server.port,
                "held": len(held),
                "published": sum(each.published for each in held),
                "rss_kb": resident_kb(os.getpid()),
                "cpu_s": time.process_time(),
                "at": time.monotonic(),
            }
            print(json.dumps(told), flush=True)
            await asyncio.sleep(_TELL_S)


async def agents(folder: Path, first: str, count: str, *ports: str) -> None:
    site = Site(folder)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    crowd = [
        Agent(site, f"s{int(first) + number:05d}", addresses, seed=number)
        for number in range(int(count))
    ]
    print("{}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for agent in crowd:
        agent.start()
    await asyncio.Event().wait()


class Part:
    """A process that tells how it is, one JSON line after another."""

    def __init__(self, role: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.scale_link", "--role", role, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), True)

    def told(self) -> dict[str, Any]:
        """The newest line."""
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def until(self, key: str, least: int, within_s: float) -> dict[str, Any]:
        """The first line in which this figure is reached."""
        deadline = time.monotonic() + within_s
        while (line := self.told())[key] < least:
            if time.monotonic() > deadline:
                raise AssertionError(f"only {line} after {within_s} s")
        return line

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()


@contextmanager
def running(*parts: Part) -> Iterator[None]:
    try:
        yield
    finally:
        for part in parts:
            part.process.kill()
            part.process.wait()


def inside(count: int, etcd: list[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Site(folder)
        replicas = [Part("replica", name, each, *etcd) for each in ("a", "b")]
        ports = [str(part.told()["port"]) for part in replicas]
        each = count // PROCESSES
        crowds = [
            Part("agents", name, str(number * each), str(each), *ports)
            for number in range(PROCESSES)
        ]
        with running(*replicas, *crowds):
            for crowd in crowds:
                crowd.told()
            empty = [part.told() for part in replicas]
            begun = time.monotonic()
            for crowd in crowds:
                crowd.go()
            linked = _all_linked(replicas, each * PROCESSES, 180)
            linked_s = time.monotonic() - begun
            before = [_latest(part) for part in replicas]
            idle_until = time.monotonic() + IDLE_S
            while time.monotonic() < idle_until:
                after = [part.told() for part in replicas]
            one, other = replicas
            killed = time.monotonic()
            one.process.send_signal(signal.SIGKILL)
            last = other.until("held", each * PROCESSES, 120)
            held_s = time.monotonic() - killed
            last = other.until("published", each * PROCESSES, 120)
            published_s = time.monotonic() - killed
    links = sum(line["held"] for line in linked)
    memory_kb = sum(line["rss_kb"] for line in linked) - sum(line["rss_kb"] for line in empty)
    spent_s = sum(line["cpu_s"] for line in after) - sum(line["cpu_s"] for line in before)
    share = spent_s / IDLE_S
    _tell("links", links, "links", spread=[line["held"] for line in linked])
    _tell("all linked and published, from nothing", linked_s, "s")
    _tell("replica memory a link", memory_kb / links, "KiB")
    _tell("replica processor a link, idle", share / links * 1e6, "µs/s")
    _tell("all linked again after a replica's death", held_s, "s", goal=5.0)
    _tell("all published again after a replica's death", published_s, "s")
    _tell("memory of the replica that holds all", last["rss_kb"] / 1024, "MiB")
    _tell(f"extrapolated: processors for {TARGET} idle links", share / links * TARGET, "cores")
    _tell(f"extrapolated: memory for {TARGET} links", memory_kb / links * TARGET / 1024, "MiB")
    _tell(f"extrapolated: {TARGET} linked again", held_s / links * TARGET, "s")
    return 0


def _all_linked(replicas: list[Part], count: int, within_s: float) -> list[dict[str, Any]]:
    deadline = time.monotonic() + within_s
    while True:
        lines = [part.told() for part in replicas]
        if sum(line["published"] for line in lines) >= count:
            return lines
        if time.monotonic() > deadline:
            raise AssertionError(f"only {lines} after {within_s} s")


def _latest(part: Part) -> dict[str, Any]:
    return part.told()


def _tell(name: str, value: float, unit: str, *, goal: float | None = None, **more: Any) -> None:
    ok = None if goal is None else value <= goal
    figure = {"name": name, "value": round(value, 3), "unit": unit, "bare": None, "ratio": None}
    print(json.dumps({**figure, "goal": goal, "ok": ok, **more}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.scale_link", description=__doc__)
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    allow_many_files()
    if asked.role == "inside":
        return inside(asked.agents, asked.words)
    if asked.role:
        logging.disable(logging.WARNING)
        asyncio.run(globals()[asked.role](Path(asked.words[0]), *asked.words[1:]))
        return 0
    lab = Lab("benchlink", parts=("etcd",))
    try:
        lab.up()
        client = lab.etcd.client
        files = [str(each) for each in (client.authority, client.certificate, client.key)]
        enter = ["nsenter", f"--net={lab.network.control_file}"]
        again = [sys.executable, "-m", "bench.scale_link", "--role", "inside"]
        again += ["--agents", str(asked.agents), *lab.etcd.endpoints, *files]
        return subprocess.run([*enter, *again], check=False).returncode
    finally:
        lab.down(purge=True)


if __name__ == "__main__":
    sys.exit(main())
