"""A job on a thousand nodes that twenty people follow: what a line costs, how soon all are open.

    just bench logs-many-nodes [--nodes 1000] [--viewers 20] [--rounds 7]

Real are the server's code with its listeners and TLS, the link and the certificate of every node,
the feeds, and viewers of the SDK. Made up are Slurm and the nodes, many of which share a process.
A node writes its first line when its feed is open. Then one node after the other writes a line, and
the next waits until every viewer has it: no line shares a round with another. What the server uses
while nothing is written is subtracted. All parts share this machine; each has its own figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.crowd import job_server, names
from bench.figures import Figure, load, measured, say
from bench.log_viewers import Viewers
from bench.measuring import (
    HERE,
    TELL_S,
    Meter,
    Part,
    allow_many_files,
    end_with_the_first,
    quiet,
    resident_kb,
)
from bench.simulated import PEOPLE_CA, people_served, run_as_server
from bench.simulated_logs import JOB, OWNER, LogFeed, LogFile
from lattice.client import Settings
from lattice.domain.stream import Session, StreamKind
from tests.fakes.server import token
from tests.integration.link.site import Agent, Site

ROUNDS = 7
NODES, VIEWERS, LINES = 1000, 20, 120
LINE_GOAL_MS, OPEN_GOAL_S = 0.3, 5.0
SETTLE_S, QUIET_S = 3.0, 10.0
_PROCESSES = 2
_SESSION_WAIT_S = 10.0
"""How long a node keeps a session that its server has left, instead of a minute."""
_ANEW = "anew"
"""Asks all nodes to begin with empty files."""
_STRIDE = 37
"""From one node that writes to the next: prime to the number of nodes."""
_LINKED_WITHIN_S, _OPEN_WITHIN_S, _LINE_WITHIN_S, _CLOSED_WITHIN_S = 300.0, 300.0, 60.0, 180.0


# The server, the nodes and the viewers, each in processes of their own.


async def serve(folder: Path, count: int) -> None:
    """Reports how many nodes are linked."""
    end_with_the_first()
    server, faces = await job_server(folder, count)
    async with people_served(faces, folder) as url:
        while True:
            say({"agents": server.port, "people": url, "linked": len(server.hub.held)})
            await asyncio.sleep(TELL_S)


class WritingNode:
    """One rank on one node: it writes when a feed finds its file empty, and when it is asked to."""

    def __init__(self, name: str, rank: int) -> None:
        self.name = name
        self._rank = rank
        self._files: list[LogFile] = []
        self._feeds: list[LogFeed] = []
        self.begin_anew()

    @property
    def is_open(self) -> bool:
        return bool(self._feeds)

    def begin_anew(self) -> None:
        """Nothing is written yet."""
        self._files[:] = [LogFile(f"0.{self._rank}")]

    async def serve(self, session: Session, opening: bytes) -> None:
        """A server's feed."""
        feed = LogFeed(session, opening, self._files)
        await feed.report()
        self._feeds.append(feed)
        try:
            if not self._files[0].text:
                await self.write(f"{self.name} begins".encode())
            await feed.answer()
        finally:
            self._feeds.remove(feed)

    async def write(self, line: bytes) -> None:
        """To the file and to every open feed."""
        texts = self._files[0].write(line + b"\n", int(time.time() * 1000))
        for feed in self._feeds:
            await feed.push(texts)


async def nodes(folder: Path, port: int, share: int, count: int) -> None:
    """Reports how many feeds are open. The input names nodes that write a line, or `_ANEW`."""
    site = Site(folder)
    site.wait_s = _SESSION_WAIT_S
    mine = list(enumerate(names(count)))[share::_PROCESSES]
    found = {name: WritingNode(name, rank) for rank, name in mine}
    agents = [
        Agent(
            site, name, [f"{HERE}:{port}"], seed=rank, serves={StreamKind.LOGS: found[name].serve}
        )
        for rank, name in mine
    ]
    for agent in agents:
        agent.start()

    async def write() -> None:
        number, loop = 0, asyncio.get_running_loop()
        while name := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            if name == _ANEW:
                for each in found.values():
                    each.begin_anew()
                continue
            number += 1
            await found[name].write(f"{name} step {number} loss {1 / number:.6f}".encode())
        os._exit(0)

    writing = asyncio.create_task(write())
    while not writing.done():
        say({"open": sum(each.is_open for each in found.values())})
        await asyncio.sleep(TELL_S)
    await writing


async def viewers(url: str, ca: str, count: int, node_count: int) -> None:
    """Begins with a token on the input; reports lines that every viewer has."""
    say({"lines": 0, "complete": 0})
    caller = (await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)).strip()
    end_with_the_first()
    reported = (0, 0)

    def report() -> None:
        nonlocal reported
        lines = min(each.lines for each in crowd.each)
        done = sorted(each.complete_at - begun for each in crowd.each if each.complete_at)
        if (lines, len(done)) == reported:
            return
        reported = lines, len(done)
        state = {"lines": lines, "complete": len(done), "lost": crowd.lost}
        say(state | {"first_s": done[0] if done else None, "last_s": done[-1] if done else None})

    settings = Settings((url,), ca=ca, token=caller)
    crowd = Viewers(settings, str(JOB), count, nodes=node_count, changed=report)
    begun = time.monotonic()
    await crowd.start({})
    while True:
        crowd.check()
        await asyncio.sleep(TELL_S)


# What is measured of them.


@dataclass(frozen=True, slots=True)
class Round:
    """Times in seconds; processor seconds are by `server`, `agents` and `viewers`."""

    first_s: float
    """Until the first viewer had a line of every node."""
    last_s: float
    """Until all had."""
    opening: Mapping[str, float]
    quiet_cores: Mapping[str, float]
    lines: Mapping[str, float]
    lines_took_s: float


@dataclass(frozen=True, slots=True)
class FollowedJob:
    """The parts that outlast a round."""

    server: Part
    crowds: Sequence[Part]
    folder: Path
    node_count: int
    viewer_count: int

    def round(self) -> Round:
        given = (str(self.server.last["people"]), str(self.folder / PEOPLE_CA))
        people = Part(
            *("bench.logs_many_nodes", "--role", "viewers", *given),
            *(str(self.viewer_count), str(self.node_count)),
        )
        try:
            found = self._measured(people)
        finally:
            people.end()
        for each in self.crowds:
            each.until(lambda state: state["open"] == 0, _CLOSED_WITHIN_S)
            each.tell(_ANEW)
        return found

    def _measured(self, people: Part) -> Round:
        people.until(bool, 60)
        meter = self._meter(people)
        people.tell(token(OWNER, preferred_username=OWNER))
        opened = people.until(lambda state: state["complete"] >= self.viewer_count, _OPEN_WITHIN_S)
        opening = _by_side(meter.used_s())
        time.sleep(SETTLE_S)
        meter = self._meter(people)
        time.sleep(QUIET_S)
        took_s = meter.took_s
        resting = {side: used / took_s for side, used in _by_side(meter.used_s()).items()}
        meter = self._meter(people)
        self._write_lines(people, opened["lines"])
        return Round(
            first_s=opened["first_s"],
            last_s=opened["last_s"],
            opening=opening,
            quiet_cores=resting,
            lines_took_s=meter.took_s,
            lines=_by_side(meter.used_s()),
        )

    def _write_lines(self, people: Part, had: int) -> None:
        every = names(self.node_count)
        for number in range(LINES):
            rank = number * _STRIDE % self.node_count
            self.crowds[rank % _PROCESSES].tell(every[rank])
            state = people.until(partial(_has_lines, had + number + 1), _LINE_WITHIN_S)
            if state["lost"]:
                raise SystemExit(f"{state['lost']} viewers were lost")

    def _meter(self, people: Part) -> Meter:
        pids = {"server": self.server.process.pid, "viewers": people.process.pid}
        agents = {f"agents {n}": each.process.pid for n, each in enumerate(self.crowds)}
        return Meter(pids | agents)


def _has_lines(count: int, state: Mapping[str, Any]) -> bool:
    return bool(state["lines"] >= count)


def _by_side(used: Mapping[str, float]) -> dict[str, float]:
    sides: dict[str, float] = {"server": 0.0, "agents": 0.0, "viewers": 0.0}
    for name, value in used.items():
        sides[name.split(" ", 1)[0]] += value
    return sides


def figures(rounds: Sequence[Round], node_count: int, viewer_count: int) -> list[Figure]:
    """The medians of the rounds."""
    job = f"{node_count} nodes, {viewer_count} viewers"
    a_line_ms = 1000 / LINES / viewer_count

    def of_lines(side: str) -> list[float]:
        return [
            max(0.0, each.lines[side] - each.quiet_cores[side] * each.lines_took_s) * a_line_ms
            for each in rounds
        ]

    with_rest = [each.lines["server"] * a_line_ms for each in rounds]
    took_ms = [each.lines_took_s / LINES * 1000 for each in rounds]
    return [
        measured(
            f"{job}: server processor a line and viewer",
            "ms",
            of_lines("server"),
            at_most=LINE_GOAL_MS,
        ),
        measured(
            f"{job}: lines of all nodes came to all viewers after",
            "s",
            [each.last_s for each in rounds],
            at_most=OPEN_GOAL_S,
        ),
        measured(
            f"{job}: lines of all nodes came to the first viewer after",
            "s",
            [each.first_s for each in rounds],
        ),
        *(
            measured(
                f"{job}: processor time until then, {side}",
                "s",
                [each.opening[side] for each in rounds],
            )
            for side in ("server", "agents", "viewers")
        ),
        measured(f"{job}: the same with what the server does anyway", "ms", with_rest),
        measured(
            f"{job}: server processor while nothing is written",
            "cores",
            [each.quiet_cores["server"] for each in rounds],
        ),
        measured(f"{job}: viewers' processor a line and viewer", "ms", of_lines("viewers")),
        measured(f"{job}: until all viewers have a line", "ms", took_ms),
    ]


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        Site(Path(name))

        def part(role: str, *given: str) -> Part:
            made = Part("bench.logs_many_nodes", "--role", role, *given)
            stack.callback(made.end)
            made.until(bool, 60)
            return made

        count = str(options.nodes)
        server = part("serve", name, count)
        port = str(server.last["agents"])
        crowds = [part("nodes", name, port, str(share), count) for share in range(_PROCESSES)]
        server.until(lambda state: state["linked"] >= options.nodes, _LINKED_WITHIN_S)
        job = FollowedJob(server, crowds, Path(name), options.nodes, options.viewers)
        found = []
        for number in range(options.rounds):
            found.append(job.round())
            print(f"round {number}: {found[-1]}", file=sys.stderr, flush=True)
        memory = resident_kb(server.process.pid)
    shown = figures(found, options.nodes, options.viewers)
    for figure in shown:
        figure.print(rounds=options.rounds, load=load(), server_mib=round(memory / 1024, 1))
    return 0 if all(each.ok is not False for each in shown) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.logs_many_nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="7 for a result")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("given", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    allow_many_files()
    if options.role is None:
        return run(options)
    quiet()
    given = options.given
    if options.role == "serve":
        run_as_server(serve(Path(given[0]), int(given[1])))
    elif options.role == "nodes":
        asyncio.run(nodes(Path(given[0]), *map(int, given[1:])))
    else:
        asyncio.run(viewers(*given[:2], *map(int, given[2:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
