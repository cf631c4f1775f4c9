"""What a job and its neighbour on a node feel of Lattice while the job writes 1 GB a minute.

    just bench logs-beside [--rounds N] [--lab NAME]

One job writes 4 KiB at a time, 1 GB a minute, and times each write(); another computes and counts;
a third writes a line now and then, which somebody follows. Windows with the node's agent at work
and without it follow one another; each has a writer of its own, whose file is gone before the next,
so that none has to read what another left. Server and viewer are no part of a node: on this one
machine they get only what nobody else wants. One JSON line a figure. Needs root and a lab.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, paired
from bench.logs_live import laboratory
from bench.logs_live_jobs import NODE, TICKER, Bench, ended
from bench.measuring import processor_s
from lab.laboratory import Lab

ROUNDS = 7
WINDOW_S, SETTLE_S = 8.0, 3.0
GOAL = 0.03
ARRIVAL_S = 2.0
_FRESH_S = 1.0
_LEAST = 19
BYTES_A_SECOND = 1_000_000_000 / 60

WRITER = """
import json, os, sys, time
side = open(sys.argv[1], "w", buffering=1)
rate = float(sys.argv[2])
block = (b"2026-11-15 14:02:11 INFO step 1234 loss 0.1234 throughput 99 " * 70)[:4095] + b"\\n"
clock = time.perf_counter_ns
begun, written, took = time.monotonic(), 0, []
told = begun
while True:
    now = time.monotonic()
    while written < (now - begun) * rate:
        before = clock()
        os.write(1, block)
        took.append(clock() - before)
        written += len(block)
    if now - told >= 1.0 and took:
        took.sort()
        figures = [took[len(took) // 2], took[len(took) * 99 // 100], len(took)]
        side.write(json.dumps([time.time(), *figures]) + "\\n")
        took, told = [], now
    time.sleep(0.005)
"""
"""Says each second the median and the 99th percentile of its write(), in nanoseconds."""

NEIGHBOUR = """
import json, sys, time
side = open(sys.argv[1], "w", buffering=1)
while True:
    begun, turns, value = time.perf_counter(), 0, 1
    while (took := time.perf_counter() - begun) < 0.5:
        for _ in range(2000):
            value = value * 48271 % 2147483647
        turns += 1
    side.write(json.dumps([time.time(), turns / took]) + "\\n")
"""
"""Says twice a second how fast it computes."""


@dataclass
class Window:
    """What was felt in one."""

    write_p50_us: float
    write_p99_us: float
    writes: int
    speed: float
    agent_cpu: float


def beside(bench: Bench, rounds: int) -> list[Figure]:
    """The figures."""
    agent = bench.lab.node(NODE).agent
    side = bench.name() + ".speed"
    ages = _Ages()
    found: dict[bool, list[Window]] = {True: [], False: []}
    try:
        with bench.job(NEIGHBOUR, side), bench.job(TICKER) as other, _elsewhere(bench):
            for number in range(rounds):
                for with_agent in (True, False) if number % 2 else (False, True):
                    if not with_agent:
                        agent.stop()
                        found[False].append(_window(bench, side, None))
                        continue
                    agent.start()
                    viewer = bench.follow(other, "--tail", "1")
                    _set_nice(viewer.pid, _LEAST)
                    with ended(viewer) as printed, ages.of(printed):
                        ages.until_fresh()
                        found[True].append(_window(bench, side, agent.process.pid))
                _note(number, found)
    finally:
        agent.start()
    ours, bare = found[True], found[False]
    arrival = ages.p99_s
    return [
        _slower("write() p99 beside 1 GB/min", ours, bare, "write_p99_us", "µs"),
        _slower("write() p50 beside 1 GB/min", ours, bare, "write_p50_us", "µs", judged=False),
        _slower("a neighbour's speed beside 1 GB/min", ours, bare, "speed", "1/s"),
        Figure(
            name="agent's processor beside 1 GB/min",
            value=round(statistics.median(each.agent_cpu for each in ours), 3),
            unit="cores",
        ),
        Figure(
            name="another job's lines, p99 until printed",
            value=round(arrival, 3),
            unit="s",
            goal=ARRIVAL_S,
            ok=arrival <= ARRIVAL_S,
        ),
    ]


@contextmanager
def _elsewhere(bench: Bench) -> Iterator[None]:
    """The server as if on another machine, as far as that goes."""
    pid = bench.lab.servers[0].process.pid
    _set_nice(pid, _LEAST)
    try:
        yield
    finally:
        _set_nice(pid, 0)


def _set_nice(pid: int, value: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), value)


def _window(bench: Bench, neighbour: str, agent: int | None) -> Window:
    """A writer of its own, and what it and the neighbour say once both run evenly."""
    side = bench.name() + ".writes"
    with bench.job(WRITER, side, str(BYTES_A_SECOND)):
        time.sleep(SETTLE_S)
        used, begun = (processor_s(agent) if agent else 0.0), time.time()
        time.sleep(WINDOW_S)
        used, end = (processor_s(agent) if agent else 0.0) - used, time.time()
    writes = _rows(bench.seen_from_here(side), begun, end)
    speeds = _rows(bench.seen_from_here(neighbour), begun, end)
    bench.seen_from_here(side).unlink(missing_ok=True)
    return Window(
        write_p50_us=statistics.median(row[1] for row in writes) / 1000,
        write_p99_us=statistics.median(row[2] for row in writes) / 1000,
        writes=int(sum(row[3] for row in writes)),
        speed=statistics.fmean(row[1] for row in speeds),
        agent_cpu=used / (end - begun),
    )


def _rows(file: Path, begun: float, end: float) -> list[list[float]]:
    rows = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
    found = [row for row in rows if begun + 0.5 <= row[0] <= end]
    if not found:
        raise AssertionError(f"{file} says nothing of this window")
    return found


class _Ages:
    """How old lines are when they are printed, over all windows with an agent."""

    def __init__(self) -> None:
        self._ages_s: list[float] = []
        self._fresh = threading.Event()

    def until_fresh(self) -> None:
        """The agent has come so far that lines are followed as they are written."""
        if not self._fresh.wait(60.0):
            raise AssertionError("the agent does not catch up")

    @property
    def p99_s(self) -> float:
        ages = sorted(self._ages_s)
        if len(ages) < 100:
            raise AssertionError(f"only {len(ages)} lines of the other job came")
        return ages[len(ages) * 99 // 100]

    @contextmanager
    def of(self, descriptor: int) -> Iterator[None]:
        """Read what a viewer prints, while the context lasts."""
        stop = threading.Event()
        self._fresh.clear()

        def read() -> None:
            rest = b""
            while not stop.is_set():
                text = os.read(descriptor, 65536)
                now = time.time()
                *lines, rest = (rest + text).split(b"\n")
                for line in lines:
                    age_s = now - int(line.split(b" ", 1)[0]) / 1e9
                    if self._fresh.is_set():
                        self._ages_s.append(age_s)
                    elif age_s < _FRESH_S:
                        # Those before it were written while no agent ran.
                        self._fresh.set()

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        try:
            yield
        finally:
            stop.set()
            reading.join(2.0)


def _slower(
    name: str, ours: list[Window], bare: list[Window], field: str, unit: str, *, judged: bool = True
) -> Figure:
    with_it = [float(getattr(each, field)) for each in ours]
    without = [float(getattr(each, field)) for each in bare]
    if not judged:
        return paired(name, unit, with_it, without)
    if field == "speed":
        return paired(name, unit, with_it, without, at_least=1 - GOAL)
    return paired(name, unit, with_it, without, at_most=1 + GOAL)


def _note(number: int, found: dict[bool, list[Window]]) -> None:
    print(f"round {number}: with {found[True][-1]}", file=sys.stderr)
    print(f"round {number}: without {found[False][-1]}", file=sys.stderr, flush=True)


def measure(lab: Lab, rounds: int) -> list[Figure]:
    """Everything; printed as it is known."""
    found = beside(Bench(lab), rounds)
    for figure in found:
        figure.print()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.logs_beside", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="7 for a result")
    parser.add_argument("--lab", help="one that is up, of a server and agents")
    asked = parser.parse_args()
    with laboratory(asked.lab) as lab:
        found = measure(lab, asked.rounds)
    return 0 if all(each.ok is not False for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
