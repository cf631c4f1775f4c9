"""Thousands of agents and viewers on three real replicas, one of which is killed: what it costs.

    just soak scale [--agents 4000] [--viewers 2000] [--allocations 50000]
    just soak scale --small          to try it: 200 agents, 60 viewers, 2 000 allocations

Real are three `lattice-server` programs with their listeners and TLS, an etcd of three members, a
VictoriaMetrics, the wire of every agent and viewer. Made up are Slurm (`scale_slurm`: 50 000
allocations, of which 200 a second change) and what nodes measure and write (`scale_nodes`).

Phases: agents link in three steps; they idle; they send samples; viewers come in three steps; one
replica is killed. Then nothing may be lost: every line came to each who follows it, once; a watcher
was missing no moment unless that was noted; the store has each batch that was acknowledged.

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
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.figures import Figure, load
from bench.measuring import (
    Part,
    RunningStore,
    allow_many_files,
    metric_store,
    processor_s,
    quiet,
    resident_kb,
)
from bench.soak.scale_etcd import RunningEtcd, etcd_cluster
from bench.soak.scale_model import Model, Observed, fitted
from bench.soak.scale_nodes import MEASURE_S, NUMBERED, Rates, nodes
from bench.soak.scale_plan import Plan
from bench.soak.scale_replicas import PEOPLE_CA, Replica, replicas
from bench.soak.scale_slurm import CHANGES_A_SECOND, serve_rest, write_commands
from bench.soak.scale_viewers import viewers
from lattice.domain.metric import PREFIX
from tests.integration.link.site import Site

REPLICAS, CROWDS, AUDIENCES = 3, 3, 3
STEPS = (0.25, 0.5, 1.0)
"""Of the agents, then of the viewers."""
_MODULE = "bench.soak.scale"
_LINKED_WITHIN_S, _CAME_WITHIN_S, _CAUGHT_UP_WITHIN_S = 900.0, 180.0, 120.0
_STATE_AGE = 'lattice_engine_answer_age_seconds{engine="slurmctld"}'
_COUNTED = {
    "links_held": "links",
    "links_standby": "links",
    "lanes_open": "lanes",
    "connections_open": "connections",
}
_PAUSE = "lattice_event_loop_longest_pause_seconds"


@dataclass(frozen=True, slots=True)
class Use:
    """What the parts had used at one moment."""

    at: float
    processor_s: Mapping[str, float]
    memory_mib: Mapping[str, float]
    metrics: Mapping[str, Mapping[str, float]]


@dataclass
class Soak:
    """All parts while they run, and what is found."""

    asked: argparse.Namespace
    plan: Plan
    folder: Path
    store: RunningStore
    replicas: list[Replica]
    etcd: RunningEtcd
    slurm: Part
    crowds: list[Part]
    audiences: list[Part]
    figures: list[Figure] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    linked: int = 0
    """So many links there must be."""

    def run(self) -> None:
        self._phase("nothing is linked", self.asked.phase_s / 2)
        self._link()
        self._phase("all linked, idle", self.asked.phase_s)
        self._rates(sample_s=self.asked.sample_s)
        time.sleep(self.asked.sample_s)
        self._phase("samples", self.asked.phase_s)
        self._rates(**self._full)
        for step in STEPS:
            count = round(self.asked.viewers * step)
            self._come(count)
            self._phase(f"{count} viewers", self.asked.phase_s, count)
        self._kill()
        self._end()
        self._model()

    @property
    def _full(self) -> dict[str, float]:
        asked = self.asked
        return {
            "sample_s": asked.sample_s,
            "line_s": asked.line_s,
            "large_line_s": asked.large_line_s,
        }

    # Phases

    def _link(self) -> None:
        begun = time.monotonic()
        for number, crowd in enumerate(self.crowds):
            crowd.tell("go")
            want = len(self._share(number))
            crowd.until(partial(_has_linked, want), _LINKED_WITHIN_S)
            linked = self.linked = sum(len(self._share(each)) for each in range(number + 1))
            if number + 1 < len(self.crowds):
                self._phase(f"{linked} linked, idle", self.asked.phase_s / 2)
        self._add("all linked from nothing after", time.monotonic() - begun, "s")

    def _share(self, number: int) -> range:
        edges = [0, *(round(self.plan.nodes * step) for step in STEPS)]
        return range(edges[number], edges[number + 1])

    def _rates(self, **rates: float) -> None:
        for crowd in self.crowds:
            crowd.tell(json.dumps(asdict(Rates(**rates))))

    def _come(self, count: int) -> None:
        begun = time.monotonic()
        for number, audience in enumerate(self.audiences):
            audience.tell(json.dumps({"count": len(range(number, count, AUDIENCES))}))
        deadline = begun + _CAME_WITHIN_S
        while (came := self._all("began")) < count:
            if time.monotonic() > deadline:
                problems = [each.last.get("problems") for each in self.audiences]
                self.note(f"{count} viewers: only {came} have had an answer; {problems}")
                break
            time.sleep(1)
        self._add(f"{count} viewers: all had a first answer after", time.monotonic() - begun, "s")

    def _kill(self) -> None:
        killed, begun, before = self.replicas[0], time.monotonic(), self._use()
        lost = before.metrics[killed.name].get("lattice_links_held", 0)
        reconnected = self._all("reconnected")
        killed.kill()
        self.note(f"{killed.name} is killed: it had {lost:.0f} links")
        left = self.replicas[1:]
        name = "links of the killed replica, all of them linked again"
        while time.monotonic() < begun + _LINKED_WITHIN_S:
            held = sum(each.metrics().get("lattice_links_held", 0) for each in left)
            if held >= self.plan.nodes:
                self._add(f"{name} after", time.monotonic() - begun, "s")
                break
            time.sleep(0.2)
        self._judge(name, held, "links", held >= self.plan.nodes, self.plan.nodes)
        count = self.asked.viewers
        self._phase(f"{count} viewers, one replica killed", self.asked.phase_s * 2, count)
        self._add("log viewers that went on elsewhere", self._all("reconnected") - reconnected,
                  "viewers")  # fmt: skip

    def _end(self) -> None:
        """Nothing more is written; what is under way arrives; then both sides are compared."""
        self._rates()
        time.sleep(max(10.0, self.asked.sample_s / 2))
        wrote: dict[str, int] = {}
        batches: dict[str, list[int]] = {}
        for number, crowd in enumerate(self.crowds):
            file = self.folder / f"wrote-{number}"
            crowd.tell(json.dumps({"end": str(file)}))
            _until(file.exists, 30)
            time.sleep(2)
            found = json.loads(file.read_text())
            wrote |= found["lines"]
            batches |= found["batches"]
        all_of_them = self.folder / "wrote"
        all_of_them.write_text(json.dumps(wrote))
        deadline = time.monotonic() + _CAUGHT_UP_WITHIN_S
        while time.monotonic() < deadline:
            for audience in self.audiences:
                audience.tell(json.dumps({"wrote": str(all_of_them)}))
            time.sleep(5)
            if not self._all("behind"):
                break
        self._compare(wrote, batches)

    def _compare(self, wrote: Mapping[str, int], batches: Mapping[str, Sequence[int]]) -> None:
        self._add("lines written", sum(wrote.values()), "lines")
        self._add("lines that came to viewers", self._all("lines"), "lines")
        for name, key, unit in (
            ("lines missing between two that came", "missing", "lines"),
            ("lines missing at the end", "behind", "lines"),
            ("lines that came twice", "twice", "lines"),
            ("gaps shown to log viewers", "gaps", "gaps"),
            ("moments of watchers lost and not noted", "events_lost", "moments"),
        ):
            self._judge(name, self._all(key), unit, self._all(key) == 0, 0)
        self._add("moments that came to watchers", self._all("events"), "moments")
        self._add("moments of watchers missing, and noted", self._all("events_noted"), "moments")
        self._add("moments that came to watchers twice", self._all("events_twice"), "moments")
        self._add("answers of top", self._all("answers"), "answers")
        self._add("answers of top without a current sample", self._all("absent"), "answers")
        acknowledged = sum(crowd.last["samples"] for crowd in self.crowds)
        refused = sum(crowd.last["refused"] for crowd in self.crowds)
        self._add("samples acknowledged", acknowledged, "samples")
        self._judge("samples refused", refused, "samples", refused == 0, 0)
        self._add("sends of samples that failed and were repeated",
                  sum(crowd.last["tries_failed"] for crowd in self.crowds), "sends")  # fmt: skip
        absent = _absent(self.store.url, batches)
        self._judge("acknowledged batches that the store does not have", absent, "batches",
                    absent == 0, 0)  # fmt: skip
        self._add("batches compared with the store", sum(map(len, batches.values())), "batches")
        for each in (*self.crowds, *self.audiences):
            self.note(json.dumps(each.last))

    # What is measured

    def _phase(self, name: str, seconds: float, viewers_there: int = 0) -> None:
        before = self._use()
        links, ages, pauses = [], [], []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(5.0, seconds))
            metrics = {each.name: each.metrics() for each in self.replicas if each.runs}
            ages += [each[_STATE_AGE] for each in metrics.values() if _STATE_AGE in each]
            pauses += [each[_PAUSE] for each in metrics.values() if _PAUSE in each]
            links.append(sum(each.get("lattice_links_held", 0) for each in metrics.values()))
        after = self._use()
        self._phase_figures(name, before, after, viewers_there)
        if links:
            fewest = min(links)
            self._judge(f"{name}: fewest links at once", fewest, "links", fewest >= self.linked,
                        self.linked)  # fmt: skip
        if ages:
            self._judge(f"{name}: oldest answer of Slurm", max(ages), "s", max(ages) <= 5, 5)
        if pauses:
            self._add(f"{name}: longest pause of an event loop", 1000 * max(pauses), "ms")

    def _phase_figures(self, name: str, before: Use, after: Use, viewers_there: int) -> None:
        took_s = after.at - before.at
        cores = {
            part: (used - before.processor_s[part]) / took_s
            for part, used in after.processor_s.items()
        }
        running = [each.name for each in self.replicas if each.runs]
        for part, value in cores.items():
            self._add(f"{name}: processor, {part}", round(value, 4), "cores")
        for part, value in after.memory_mib.items():
            self._add(f"{name}: memory, {part}", round(value, 1), "MiB")
        self._add(f"{name}: processor, all", round(sum(cores.values()), 3), "cores")
        for replica in running:
            now, then = after.metrics[replica], before.metrics[replica]
            stored = "lattice_telemetry_samples_stored_total"
            self.observed.append(
                Observed(
                    phase=name,
                    replica=replica,
                    parts={
                        "itself": 1.0,
                        "links": now.get("lattice_links_held", 0.0),
                        "samples/s": (now.get(stored, 0) - then.get(stored, 0)) / took_s,
                        "viewers": viewers_there / len(running),
                    },
                    cores=cores[replica],
                    memory_mib=after.memory_mib[replica],
                )
            )
        for key, unit in _COUNTED.items():
            value = sum(after.metrics[each].get(f"lattice_{key}", 0) for each in running)
            self._add(f"{name}: {key}, all replicas", value, unit)

    def _use(self) -> Use:
        used, memory, metrics = {}, {}, {}
        for each in self.replicas:
            if each.runs:
                used[each.name], memory[each.name] = each.used_s, each.memory_mib
                used[f"{each.name}'s squeue"] = each.commands_s
                metrics[each.name] = each.metrics()
        for name, pids in self._others().items():
            used[name] = sum(map(processor_s, pids))
            memory[name] = sum(map(resident_kb, pids)) / 1024
        return Use(time.monotonic(), used, memory, metrics)

    def _others(self) -> Mapping[str, Sequence[int]]:
        return {
            "etcd": self.etcd.pids,
            "the metric store": [self.store.pid],
            "slurmrestd made up": [self.slurm.process.pid],
            "agents": [each.process.pid for each in self.crowds],
            "viewers": [each.process.pid for each in self.audiences],
        }

    def _all(self, key: str) -> int:
        return sum(each.last.get(key, 0) for each in self.audiences)

    def _model(self) -> None:
        """Costs of a replica, and how far each phase is from them."""
        parts = [each.parts for each in self.observed]
        for what, unit, values in (
            ("processor", "cores", [each.cores for each in self.observed]),
            ("memory", "MiB", [each.memory_mib for each in self.observed]),
        ):
            model = fitted(parts, values)
            for name, cost in model.costs.items():
                self._add(f"model: {what} of a replica, each of {name}", cost, unit)
            self._residuals(what, unit, model, values)

    def _residuals(self, what: str, unit: str, model: Model, values: Sequence[float]) -> None:
        for each, value in zip(self.observed, values, strict=True):
            name = f"model: {what} of {each.replica}, {each.phase}, measured less modelled"
            self._add(name, round(value - model.of(each.parts), 4), unit)

    def _add(self, name: str, value: float, unit: str) -> None:
        self._print(Figure(name=f"scale: {name}", value=value, unit=unit))

    def _judge(self, name: str, value: float, unit: str, is_ok: bool, goal: float) -> None:
        self._print(Figure(name=f"scale: {name}", value=value, unit=unit, goal=goal, ok=is_ok))

    def _print(self, figure: Figure) -> None:
        self.figures.append(figure)
        asked = self.asked
        figure.print(
            agents=asked.agents, viewers=asked.viewers, allocations=asked.allocations, load=load(),
            at_s=round(time.monotonic() - self.began),
        )  # fmt: skip

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:.0f} s: {text}", file=sys.stderr, flush=True)


def _has_linked(count: int, state: Mapping[str, Any]) -> bool:
    return bool(state.get("linked", 0) >= count)


def _until(holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {within_s:g} s")
        time.sleep(0.2)


def _absent(store: str, batches: Mapping[str, Sequence[int]]) -> int:
    """Acknowledged batches of which the store lacks the numbered series."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(f"{store}/internal/force_flush", timeout=60).close()
    asked = urllib.parse.urlencode({"match[]": PREFIX + NUMBERED})
    stored: dict[str, set[int]] = {}
    with opener.open(f"{store}/api/v1/export?{asked}", timeout=300) as answer:
        for line in answer:
            series = json.loads(line)
            stored.setdefault(series["metric"]["node"], set()).update(map(int, series["values"]))
    return sum(len(set(numbers) - stored.get(node, set())) for node, numbers in batches.items())


# Parts


def started(asked: argparse.Namespace) -> int:
    """The exit code: 1 if anything was lost."""
    plan = Plan(asked.agents, asked.allocations, int(time.time()) - 600)
    with metric_store() as store, tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        Site(folder)
        etcd = stack.enter_context(etcd_cluster(folder / "etcd"))
        soak = _soak(asked, plan, folder, store, etcd, stack)
        facts = {key: value for key, value in vars(asked).items() if key not in ("role", "given")}
        rates = {"changes_a_second": CHANGES_A_SECOND, "measure_s": MEASURE_S}
        soak.note(json.dumps(facts | rates))
        soak.run()
    missed = [each for each in soak.figures if each.ok is False]
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
    edges = [0, *(round(plan.nodes * step) for step in STEPS)]
    crowds = [part("nodes", str(first), str(last), *addresses) for first, last in pairwise(edges)]
    for crowd in crowds:
        crowd.until(bool, 600)
    urls = [each.url for each in found]
    people = [
        part("viewers", str(number), str(asked.viewers), *urls) for number in range(AUDIENCES)
    ]
    for audience in people:
        audience.until(bool, 120)
    return Soak(asked, plan, folder, store, found, etcd, slurm, crowds, people)


async def play(role: str, given: Sequence[str]) -> None:
    """One part, in a process of its own."""
    folder, rest = Path(given[0]), given[4:]
    plan = Plan(*map(int, given[1:4]))
    if role == "slurm":
        await serve_rest(Path(rest[0]), plan)
    elif role == "nodes":
        await nodes(folder, plan, range(int(rest[0]), int(rest[1])), rest[2:])
    else:
        share = range(int(rest[0]), int(rest[1]), AUDIENCES)
        await viewers(plan, tuple(rest[2:]), str(folder / PEOPLE_CA), share)


def main() -> int:
    parser = argparse.ArgumentParser(prog=_MODULE, description=__doc__)
    parser.add_argument("--agents", type=int, default=4000)
    parser.add_argument("--viewers", type=int, default=2000)
    parser.add_argument("--allocations", type=int, default=50_000)
    parser.add_argument("--phase-s", type=float, default=60.0, help="how long each is measured")
    parser.add_argument("--sample-s", type=float, default=60.0, help="a batch of each node")
    parser.add_argument("--line-s", type=float, default=20.0, help="a line of each node")
    parser.add_argument("--large-line-s", type=float, default=120.0, help="of the largest job's")
    parser.add_argument("--small", action="store_true", help="to try it")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("given", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    allow_many_files()
    if asked.role:
        quiet()
        asyncio.run(play(asked.role, asked.given))
        return 0
    if asked.small:
        asked.agents, asked.viewers, asked.allocations = 200, 60, 2000
        asked.phase_s, asked.sample_s, asked.line_s, asked.large_line_s = 15.0, 10.0, 5.0, 10.0
    return started(asked)


if __name__ == "__main__":
    sys.exit(main())
