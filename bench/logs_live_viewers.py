"""What viewers of a job's output cost: one that hardly reads, and many who all do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figure
from bench.logs_live_jobs import NODE, TICKER, Bench, Job, cpu_s, flood, note, resident_kib

VIEWERS = 500
SETTLE_S = 3.0
_WATCH_S = 10.0


def memory(bench: Bench) -> list[Figure]:
    """Of a fresh server: idle, and at most while a job floods and its viewer hardly reads."""
    server = _fresh_server(bench)
    with flood(bench) as (job, sign), _crowd(bench, job, 1, pause_s=0.1) as crowd:
        idle = resident_kib(server)
        sign.touch()
        most = idle
        for _ in range(200):
            time.sleep(0.1)
            most = max(most, resident_kib(server))
        had = _ask(crowd)
    growth = most / idle
    note("memory", {"idle": idle, "most": most, "viewer": had})
    return [
        Figure(
            name="server memory, fast writer and slow reader to idle",
            value=most,
            unit="KiB",
            bare=idle,
            ratio=round(growth, 3),
            goal=1.2,
            ok=growth <= 1.2,
        )
    ]


def viewers(bench: Bench, count: int = VIEWERS) -> list[Figure]:
    """What each of many viewers costs the server, and what they cost the node."""
    server, agent = _fresh_server(bench), bench.lab.node(NODE).agent.process.pid
    with bench.job(TICKER.replace("0.02", "1.0")) as job:
        with _crowd(bench, job, 1, pause_s=0.0) as crowd:
            one = _watch(bench, server, agent, crowd)
            idle = resident_kib(server)
        with _crowd(bench, job, count, pause_s=0.0) as crowd:
            time.sleep(SETTLE_S)
            many = _watch(bench, server, agent, crowd)
            full = resident_kib(server)
    note("viewers", {"one": one, "many": many})
    cost_us = (many["server_cpu"] - one["server_cpu"]) / count / max(1.0, many["lines"]) * 1e6
    return [
        Figure(
            name=f"server memory a viewer, of {count}",
            value=round((full - idle) / count, 1),
            unit="KiB",
        ),
        Figure(
            name=f"server processor a viewer and line, of {count}",
            value=round(cost_us, 1),
            unit="µs",
        ),
        Figure(
            name=f"server processor, {count} viewers of a line a second",
            value=round(many["server_cpu"], 3),
            unit="cores",
        ),
        Figure(name=f"lines a viewer, of {count}", value=round(many["lines"], 2), unit="1/s"),
        _once(f"bytes the node sends, {count} viewers to one", many, one, "node_bytes"),
        _once(f"bytes the agent reads, {count} viewers to one", many, one, "read_bytes"),
    ]


def _once(name: str, many: dict[str, float], one: dict[str, float], field: str) -> Figure:
    found = many[field] / one[field]
    return Figure(
        name=name,
        value=round(many[field]),
        unit="B/s",
        bare=round(one[field]),
        ratio=round(found, 3),
        goal=1.2,
        ok=found <= 1.2,
    )


def _watch(bench: Bench, server: int, agent: int, crowd: subprocess.Popen[str]) -> dict[str, float]:
    looks: dict[str, Callable[[], float]] = {
        "server_cpu": lambda: cpu_s(server),
        "node_bytes": lambda: float(_sent_bytes(bench)),
        "read_bytes": lambda: float(_read_bytes(agent)),
        "lines": lambda: _lines_each(crowd),
    }
    # Each with its own moment: on a busy machine a look takes its time.
    before = {name: (look(), time.monotonic()) for name, look in looks.items()}
    time.sleep(_WATCH_S)
    after = {name: (look(), time.monotonic()) for name, look in looks.items()}
    return {
        name: (after[name][0] - before[name][0]) / (after[name][1] - before[name][1])
        for name in looks
    }


def _lines_each(crowd: subprocess.Popen[str]) -> float:
    had = _ask(crowd)
    if had["lost"]:
        raise AssertionError(f"{had['lost']} viewers were lost")
    return had["events"] / had["seated"]


def _sent_bytes(bench: Bench) -> int:
    """What the node has sent to the outside, of everything on it."""
    said = bench.lab.node(NODE).run(["cat", "/proc/net/dev"]).stdout
    rows = [line.replace(":", " ").split() for line in said.splitlines()[2:]]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def _read_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar")


@contextmanager
def _crowd(
    bench: Bench, job: Job, count: int, *, pause_s: float
) -> Iterator[subprocess.Popen[str]]:
    lab = bench.lab
    url = f"{lab.servers[0].url}/v1/allocations/{job.id}/logs/stream?follow=true&tail=1"
    words = (str(count), url, str(lab.layout.certificates / "ca.crt"), str(pause_s))
    argv = [sys.executable, "-m", "bench.logs_live_crowd", *words]
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    crowd = lab.control.room.popen(argv, env=path, stdin=subprocess.PIPE, stderr=None)
    try:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        crowd.stdin.write(bench.token + "\n")
        crowd.stdin.flush()
        if crowd.stdout.readline().strip() != "ready":
            raise AssertionError("the viewers were not let in")
        yield crowd
    finally:
        crowd.kill()
        crowd.communicate()


def _ask(crowd: subprocess.Popen[str]) -> dict[str, int]:
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    crowd.stdin.write("\n")
    crowd.stdin.flush()
    said: dict[str, int] = json.loads(crowd.stdout.readline())
    return said


def _fresh_server(bench: Bench) -> int:
    server = bench.lab.servers[0]
    server.kill()
    server.start()
    time.sleep(SETTLE_S)
    return server.process.pid
