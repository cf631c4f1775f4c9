"""What `just soak scale` measures: what each part uses in a phase, and the model of a replica."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Figure, load
from bench.measuring import processor_s, resident_kb
from bench.soak.scale_model import Model, Observed, fitted
from bench.soak.scale_replicas import Replica

_STATE_AGE = 'lattice_engine_answer_age_seconds{engine="slurmctld"}'
_COUNTED = {
    "links_held": "links",
    "links_standby": "links",
    "lanes_open": "lanes",
    "connections_open": "connections",
}
_PAUSE = "lattice_event_loop_longest_pause_seconds"
_SAMPLES = "lattice_telemetry_samples_stored_total"
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Use:
    """What the parts had used at one moment."""

    at: float
    processor_s: Mapping[str, float]
    memory_mib: Mapping[str, float]
    metrics: Mapping[str, Mapping[str, float]]


class Measures:
    """The figures of a soak."""

    def __init__(
        self,
        asked: argparse.Namespace,
        replicas: Sequence[Replica],
        others: Callable[[], Mapping[str, Sequence[int]]],
    ) -> None:
        """`others` returns the processes beside the replicas, by the name of their part."""
        self.figures: list[Figure] = []
        self._asked = asked
        self._replicas = replicas
        self._others = others
        self._observed: list[Observed] = []
        self._began = time.monotonic()

    def add(self, name: str, value: float, unit: str) -> None:
        """A figure without a goal."""
        self._print(Figure(name=f"scale: {name}", value=value, unit=unit))

    def judge(self, name: str, value: float, unit: str, is_ok: bool, goal: float) -> None:
        """A figure with a goal."""
        self._print(Figure(name=f"scale: {name}", value=value, unit=unit, goal=goal, ok=is_ok))

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:.0f} s: {text}", file=sys.stderr, flush=True)

    def use(self) -> Use:
        """What every part has used until now."""
        used, memory, metrics = {}, {}, {}
        for each in self._replicas:
            if each.runs:
                used[each.name], memory[each.name] = each.used_s, each.memory_mib
                used[f"{each.name}'s squeue"] = each.commands_s
                metrics[each.name] = each.metrics()
        for name, pids in self._others().items():
            used[name] = sum(map(processor_s, pids))
            memory[name] = sum(map(resident_kb, pids)) / 1024
        return Use(time.monotonic(), used, memory, metrics)

    def phase(self, name: str, seconds: float, linked: int, viewers: int = 0) -> bool:
        """Measure for so long; False if a link was lost meanwhile."""
        before = self.use()
        links, ages, pauses = [], [], []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(_LOOK_S, seconds))
            metrics = {each.name: each.metrics() for each in self._replicas if each.runs}
            ages += [each[_STATE_AGE] for each in metrics.values() if _STATE_AGE in each]
            pauses += [each[_PAUSE] for each in metrics.values() if _PAUSE in each]
            links.append(sum(each.get("lattice_links_held", 0) for each in metrics.values()))
        self._compare(name, before, self.use(), viewers)
        fewest = min(links, default=0)
        holds = fewest >= linked
        self.judge(f"{name}: fewest links at once", fewest, "links", holds, linked)
        if ages:
            self.judge(f"{name}: oldest answer of Slurm", max(ages), "s", max(ages) <= 5, 5)
        if pauses:
            self.add(f"{name}: longest pause of an event loop", 1000 * max(pauses), "ms")
        return holds

    def model(self) -> None:
        """Costs of a replica, and how far each phase is from them."""
        parts = [each.parts for each in self._observed]
        for what, unit, values in (
            ("processor", "cores", [each.cores for each in self._observed]),
            ("memory", "MiB", [each.memory_mib for each in self._observed]),
        ):
            model = fitted(parts, values)
            for name, cost in model.costs.items():
                self.add(f"model: {what} of a replica, each of {name}", cost, unit)
            self._residuals(what, unit, model, values)

    def _compare(self, name: str, before: Use, after: Use, viewers: int) -> None:
        took_s = after.at - before.at
        cores = {
            part: (used - before.processor_s[part]) / took_s
            for part, used in after.processor_s.items()
        }
        running = [each.name for each in self._replicas if each.runs]
        for part, value in cores.items():
            self.add(f"{name}: processor, {part}", round(value, 4), "cores")
        for part, value in after.memory_mib.items():
            self.add(f"{name}: memory, {part}", round(value, 1), "MiB")
        self.add(f"{name}: processor, all", round(sum(cores.values()), 3), "cores")
        for replica in running:
            now, then = after.metrics[replica], before.metrics[replica]
            self._observed.append(
                Observed(
                    phase=name,
                    replica=replica,
                    parts={
                        "itself": 1.0,
                        "links": now.get("lattice_links_held", 0.0),
                        "samples/s": (now.get(_SAMPLES, 0) - then.get(_SAMPLES, 0)) / took_s,
                        "viewers": viewers / len(running),
                    },
                    cores=cores[replica],
                    memory_mib=after.memory_mib[replica],
                )
            )
        for key, unit in _COUNTED.items():
            value = sum(after.metrics[each].get(f"lattice_{key}", 0) for each in running)
            self.add(f"{name}: {key}, all replicas", value, unit)

    def _residuals(self, what: str, unit: str, model: Model, values: Sequence[float]) -> None:
        for each, value in zip(self._observed, values, strict=True):
            name = f"model: {what} of {each.replica}, {each.phase}, measured less modelled"
            self.add(name, round(value - model.of(each.parts), 4), unit)

    def _print(self, figure: Figure) -> None:
        self.figures.append(figure)
        asked = self._asked
        figure.print(
            agents=asked.agents,
            viewers=asked.viewers,
            allocations=asked.allocations,
            load=load(),
            at_s=round(time.monotonic() - self._began),
        )
