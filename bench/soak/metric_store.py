"""The metric store away for ten minutes while a job is measured every second: no hole afterwards.

just soak metric_store [SECONDS]

Its own lab. A job on two nodes is in debug; the store is killed, and back after so many seconds.
Meanwhile its owner looks with `top` again and again, and is answered by the nodes. Afterwards every
sample in the store is looked at. Of an absence longer than the 15 minutes that agents keep, only
those are asked for. What the store took and lost by being killed is told apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from lab.laboratory import Lab
from lab.victoriametrics import PASSWORD, USERNAME
from lattice.features.telemetry.node.buffer import RETENTION_S
from tests.e2e.people import Person
from tests.e2e.topped import cell, debugged, measured_top, top
from tests.eventually import eventually

_NAME = "soak"
_PARTS = ("slurm", "oidc", "etcd", "victoriametrics", "server", "agents")
_NODES = ("n1", "n2")
_WORK = "srun /usr/bin/python3 -c 'import time\nwhile True: sum(range(100000)); time.sleep(0.1)'"
_PAUSE_S = 1.0
_BEFORE_S = 30.0
_HOLE_S = 3.0
"""Samples are a second apart; one that is read late stands nearer to the next."""
_SLOWEST_S = 5.0
_REPLAYED_WITHIN_S = 300.0
_SPARE_S = 15.0
"""Until what waits is sent, the oldest of it may have waited too long."""


@dataclass(slots=True)
class Looks:
    """What `top` answered while the store was away."""

    asked: int = 0
    live: int = 0
    """From the nodes, with a figure of each."""
    took_s: list[float] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)

    def look(self, alice: Person, job: int) -> None:
        begun = time.monotonic()
        answer = top(alice, job, "--per-node")
        self.took_s.append(time.monotonic() - begun)
        self.asked += 1
        via = str(answer.get("origin", {}).get("via", "no answer"))
        shares = [cell(answer, "cpu_utilization", node).get("value") for node in _NODES]
        if "agents" in via and None not in shares:
            self.live += 1
        else:
            self.otherwise.append(f"{via}: {shares}")


def samples(lab: Lab, job: int) -> dict[str, list[float]]:
    """The moments of every sample of the job's processor time in the store, by node."""
    match = urlencode({"match[]": f'lattice_cpu_seconds_total{{alloc="{job}"}}'})
    url = f"{lab.victoriametrics.endpoint}/api/v1/export?{match}"
    caller = ("--user", f"{USERNAME}:{PASSWORD}")
    done = lab.ctl(["curl", "-sS", "--max-time", "20", *caller, url], check=False)
    found: dict[str, list[float]] = {node: [] for node in _NODES}
    for line in done.stdout.splitlines():
        told: dict[str, Any] = json.loads(line)
        found[told["metric"]["node"]] += [each / 1000 for each in told["timestamps"]]
    return {node: sorted(set(times)) for node, times in found.items()}


def longest_hole_s(times: Sequence[float], begin: float, end: float) -> float:
    """Between two samples, or a bound and the sample next to it."""
    inside = [begin, *(each for each in times if begin < each < end), end]
    return max(later - sooner for sooner, later in pairwise(inside))


def holes(found: Mapping[str, Sequence[float]], begin: float, end: float) -> float:
    return max(longest_hole_s(times, begin, end) for times in found.values())


def tell(
    name: str,
    value: float,
    unit: str,
    *,
    goal: float | None = None,
    ok: bool | None = None,
    **more: object,
) -> bool:
    figure = {"name": f"store away: {name}", "value": round(value, 3), "unit": unit}
    figure |= {"bare": None, "ratio": None, "goal": goal, "ok": ok}
    print(json.dumps(figure | more), flush=True)
    return ok is not False


def soak(lab: Lab, alice: Person, away_s: float) -> bool:
    with debugged(lab, alice, "-w", "n[1-2]", wrap=_WORK) as job:
        longer = f"{int(away_s + _REPLAYED_WITHIN_S + 300)}s"
        said = alice.tries("telemetry", str(job), "--mode", "debug", "--duration", longer)
        assert said.code == 0, said
        for node in _NODES:
            measured_top(alice, job, "--per-node", node=node)
        time.sleep(_BEFORE_S)
        store = lab.victoriametrics.process
        looks = Looks()
        store.kill()
        gone = time.time()
        while time.time() < gone + away_s:
            looks.look(alice, job)
            time.sleep(_PAUSE_S)
        store.up()
        back = time.time()
        begin = max(gone, back - RETENTION_S + _SPARE_S)
        found = eventually(
            lambda: samples(lab, job),
            lambda seen: holes(seen, begin, back) <= _HOLE_S or time.time() > back + 290,
            patience_s=_REPLAYED_WITHIN_S,
        )
        whole_s = time.time() - back
        answer = measured_top(alice, job)
        return all(_figures(looks, found, (gone, begin, back), whole_s, answer))


def _figures(
    looks: Looks,
    found: Mapping[str, Sequence[float]],
    moments: tuple[float, float, float],
    whole_s: float,
    answer: Mapping[str, Any],
) -> list[bool]:
    gone, begin, back = moments
    away: dict[str, Any] = {"away_s": round(back - gone, 1)}
    hole_s = holes(found, begin, back)
    there = sum(begin <= each <= back for times in found.values() for each in times)
    wanted = (back - begin) * len(_NODES)
    slowest_s, via = max(looks.took_s), str(answer["origin"]["via"])
    return [
        tell("longest hole in the series", hole_s, "s", goal=_HOLE_S, ok=hole_s <= _HOLE_S, **away),
        tell("samples of the time that agents keep", there, "samples", goal=round(wanted), **away),
        tell("all of it stored after it was back", whole_s, "s", **away),
        tell(
            "longest hole before it was killed, the store's own",
            holes(found, gone - _BEFORE_S, gone),
            "s",
            **away,
        ),
        tell(
            "looks with `top` that the nodes answered",
            looks.live,
            "looks",
            goal=looks.asked,
            ok=looks.live == looks.asked,
            otherwise=looks.otherwise[:5],
            **away,
        ),
        tell(
            "slowest of them, the command's start included",
            slowest_s,
            "s",
            goal=_SLOWEST_S,
            ok=slowest_s <= _SLOWEST_S,
            median=round(sorted(looks.took_s)[len(looks.took_s) // 2], 3),
            **away,
        ),
        tell(
            "`top` asks the store again",
            float("agents" not in via),
            "of 1",
            goal=1,
            ok="agents" not in via,
            **away,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.soak.metric_store", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=600.0)
    away_s = parser.parse_args().seconds
    lab = Lab(_NAME, parts=_PARTS, servers=2, access_token_ttl_s=int(away_s) + 3600)
    try:
        lab.up()
        return 0 if soak(lab, Person(lab, "alice").logged_in(), away_s) else 1
    finally:
        lab.down(purge=True)


if __name__ == "__main__":
    sys.exit(main())
