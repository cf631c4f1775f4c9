"""Thousands of agents and viewers on three real replicas, one of which is killed: what it costs.

    just soak scale [--agents 4000] [--viewers 2000] [--allocations 50000]
    just soak scale --small          to try it: 200 agents, 60 viewers, 2 000 allocations

Real are three `lattice-server` programs with their listeners and TLS, an etcd of three members, a
VictoriaMetrics, the wire of every agent and viewer. Made up are Slurm (`scale_slurm`: 50 000
allocations, of which 200 a second change) and what nodes measure and write (`scale_nodes`).

Phases: agents link in three steps; they idle; they send samples; viewers come in three steps; one
replica is killed. Then nothing may be lost: every line came to each who follows it, once; a watcher
was missing no moment unless that was noted; the store has each batch that was acknowledged.

If links are lost before that, the machine holds no more: the phase is named, and the run ends with
the same comparison.

A replica's cost is fitted as a sum of itself, links, samples, viewers (`scale_model`), and compared
with each phase. All of it shares this machine, so processor time is by process, and elapsed times
are those of a busy machine. The rates are printed first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.measuring import (
    Part,
    RunningStore,
    allow_many_files,
    metric_store,
    quiet,
)
from bench.soak.scale_etcd import RunningEtcd, etcd_cluster
from bench.soak.scale_measures import Measures
from bench.soak.scale_nodes import nodes
from bench.soak.scale_phases import AUDIENCES, Soak, shares
from bench.soak.scale_plan import Plan
from bench.soak.scale_replicas import PEOPLE_CA, replicas
from bench.soak.scale_slurm import CHANGES_A_SECOND, serve_rest, write_commands
from bench.soak.scale_viewers import Pace, viewers
from lattice.base.pauses import LoopPauses
from tests.integration.link.site import Site

REPLICAS = 3
_MODULE = "bench.soak.scale"


def started(asked: argparse.Namespace) -> int:
    """The exit code: 1 if anything was lost."""
    plan = Plan(asked.agents, asked.allocations, int(time.time()) - 600)
    with metric_store() as store, tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        Site(folder)
        etcd = stack.enter_context(etcd_cluster(folder / "etcd"))
        soak = _soak(asked, plan, folder, store, etcd, stack)
        facts = {key: value for key, value in vars(asked).items() if key not in ("role", "given")}
        soak.measures.note(json.dumps(facts | {"changes_a_second": CHANGES_A_SECOND}))
        soak.run()
    missed = [each for each in soak.measures.figures if each.ok is False]
    for each in missed:
        print(f"missed: {each}", file=sys.stderr)
    return 1 if missed else 0


def _soak(
    asked: argparse.Namespace,
    plan: Plan,
    folder: Path,
    store: RunningStore,
    etcd: RunningEtcd,
    stack: ExitStack,
) -> Soak:
    commands, socket = folder / "bin", folder / "slurmrestd.sock"
    commands.mkdir()
    write_commands(commands, plan)

    def part(role: str, *given: str) -> Part:
        numbers = [str(plan.nodes), str(plan.allocations), str(plan.began)]
        made = Part(_MODULE, "--role", role, str(folder), *numbers, *given)
        stack.callback(made.end)
        return made

    slurm = part("slurm", str(socket))
    slurm.until(bool, 60)
    found = replicas(folder, etcd, commands, socket, store.url, REPLICAS)
    found[0].bootstrap()
    for each in found:
        stack.callback(each.kill)
        each.start()
    for each in found:
        each.wait()
    addresses = [each.agent_address for each in found]
    measure_s = str(asked.measure_s)
    crowds = [
        part("nodes", str(share.start), str(share.stop), measure_s, *addresses)
        for share in shares(plan)
    ]
    for crowd in crowds:
        crowd.until(bool, 600)
    urls = [each.url for each in found]
    people = [
        part("viewers", str(number), str(asked.viewers), str(asked.top_s), measure_s, *urls)
        for number in range(AUDIENCES)
    ]
    for audience in people:
        audience.until(bool, 120)

    def others() -> Mapping[str, Sequence[int]]:
        return {
            "etcd": etcd.pids,
            "the metric store": [store.pid],
            "slurmrestd made up": [slurm.process.pid],
            "agents": [each.process.pid for each in crowds],
            "viewers": [each.process.pid for each in people],
        }

    measures = Measures(asked, found, others)
    return Soak(asked, plan, folder, store, found, crowds, people, measures)


async def play(role: str, given: Sequence[str]) -> None:
    """One part, in a process of its own."""
    folder, rest = Path(given[0]), given[4:]
    plan = Plan(*map(int, given[1:4]))
    if role == "slurm":
        await serve_rest(Path(rest[0]), plan)
    elif role == "nodes":
        await nodes(folder, plan, range(int(rest[0]), int(rest[1])), int(rest[2]), rest[3:])
    else:
        share = range(int(rest[0]), int(rest[1]), AUDIENCES)
        pace = Pace(float(rest[2]), int(rest[3]))
        await viewers(plan, pace, tuple(rest[4:]), str(folder / PEOPLE_CA), share)


def main() -> int:
    parser = argparse.ArgumentParser(prog=_MODULE, description=__doc__)
    parser.add_argument("--agents", type=int, default=4000)
    parser.add_argument("--viewers", type=int, default=2000)
    parser.add_argument("--allocations", type=int, default=50_000)
    parser.add_argument("--phase-s", type=float, default=60.0, help="how long each is measured")
    parser.add_argument("--sample-s", type=float, default=60.0, help="a batch of each node")
    parser.add_argument("--line-s", type=float, default=20.0, help="a line of each node")
    parser.add_argument("--large-line-s", type=float, default=120.0, help="of the largest job's")
    parser.add_argument("--top-s", type=float, default=60.0, help="a `top` of each who asks")
    parser.add_argument("--measure-s", type=int, default=30, help="what watchers see")
    parser.add_argument("--viewers-a-second", type=float, default=8.0, help="how fast they come")
    parser.add_argument("--no-kill", action="store_true", help="no server is killed at the end")
    parser.add_argument("--small", action="store_true", help="to try it")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("given", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    allow_many_files()
    if asked.role:
        quiet()
        # Agents have this loop, too.
        with asyncio.Runner(loop_factory=LoopPauses().new_fast_loop) as runner:
            runner.run(play(asked.role, asked.given))
        return 0
    if asked.small:
        asked.agents, asked.viewers, asked.allocations = 200, 60, 2000
        asked.phase_s, asked.sample_s, asked.line_s, asked.large_line_s = 15.0, 10.0, 5.0, 10.0
    return started(asked)


if __name__ == "__main__":
    sys.exit(main())
