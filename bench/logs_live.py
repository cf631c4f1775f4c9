"""Following a job's output, from the write of the job's process to what a viewer prints.

    just bench logs-live [--rounds N] [--only latency,throughput,memory,viewers] [--lab NAME]

Real are Slurm, the job, its file, the agent, the server and `lattice logs --follow` in a pipe.
Beside it, in the same rounds: a bare relay of the same shape, `ssh tail -f`, and `sattach`. One
JSON line a figure; a ratio is the median of the rounds' own ratios. Needs root and a lab.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.logs_live_jobs import (
    FLOOD,
    NODE,
    TICKER,
    Bench,
    Job,
    cpu_s,
    ended,
    flood_mb_per_s,
    line_ages_ms,
    ratio,
    resident_kib,
)
from bench.logs_live_peers import Ssh, bare_relay, sattach
from bench.poll import Figure
from lab.laboratory import Lab

ROUNDS = 7
LINES, SKIPPED = 150, 50
FLOOD_BYTES = 100_000_000
VIEWERS = 500
_SETTLE_S = 3.0
_WATCH_S = 10.0
SECTIONS = ("latency", "throughput", "memory", "viewers")


def latency(bench: Bench, rounds: int) -> list[Figure]:
    """The median age of a line when a viewer prints it, in milliseconds."""
    ages: dict[str, list[float]] = {"ours": [], "bare": [], "ssh": []}
    with bench.job(TICKER) as job, Ssh(bench).serving() as ssh:
        for _ in range(rounds):
            with ended(bench.follow(job, "--tail", "1")) as printed:
                ages["ours"].append(statistics.median(line_ages_ms(printed, LINES, SKIPPED)))
            with bare_relay(bench, job) as viewer:
                assert viewer.stdout is not None
                found = line_ages_ms(viewer.stdout.fileno(), LINES, SKIPPED)
                ages["bare"].append(statistics.median(found))
            with ended(ssh.tail(job, "1")) as printed:
                ages["ssh"].append(statistics.median(line_ages_ms(printed, LINES, SKIPPED)))
            _note("latency", {name: round(each[-1], 2) for name, each in ages.items()})
    return [
        _against("follow latency p50, bare relay", ages["ours"], ages["bare"], "ms", at_most=1.3),
        _against("follow latency p50, ssh tail -f", ages["ours"], ages["ssh"], "ms"),
    ]


def throughput(bench: Bench, rounds: int) -> list[Figure]:
    """Megabytes a second from a job that writes as fast as it can."""
    speeds: dict[str, list[float]] = {"ours": [], "ssh": [], "sattach": []}
    with Ssh(bench).serving() as ssh:
        for _ in range(rounds):
            with _flood(bench) as (job, sign), ended(bench.follow(job)) as printed:
                speeds["ours"].append(flood_mb_per_s(printed, sign, FLOOD_BYTES))
            with _flood(bench) as (job, sign), ended(ssh.tail(job, "+1")) as printed:
                speeds["ssh"].append(flood_mb_per_s(printed, sign, FLOOD_BYTES))
            with (
                _flood(bench, with_srun=True) as (job, sign),
                ended(sattach(bench, job)) as printed,
            ):
                speeds["sattach"].append(flood_mb_per_s(printed, sign, FLOOD_BYTES))
            _note("throughput", {name: round(each[-1], 1) for name, each in speeds.items()})
    ours = speeds["ours"]
    return [
        _against("follow throughput, ssh tail -f", ours, speeds["ssh"], "MB/s", at_least=0.85),
        _against("follow throughput, sattach", ours, speeds["sattach"], "MB/s", at_least=3.0),
    ]


@contextmanager
def _flood(bench: Bench, *, with_srun: bool = False) -> Iterator[tuple[Job, Path]]:
    sign = bench.name() + ".go"
    words = (str(FLOOD_BYTES), sign)
    try:
        with bench.job(FLOOD, *words, with_srun=with_srun) as job:
            bench.until_written(job)
            yield job, bench.seen_from_here(sign)
    finally:
        bench.seen_from_here(sign).unlink(missing_ok=True)


def memory(bench: Bench) -> list[Figure]:
    """Of a fresh server: idle, and at most while a job floods and its viewer hardly reads."""
    server = _fresh_server(bench)
    with _flood(bench) as (job, sign), _crowd(bench, job, 1, pause_s=0.1) as crowd:
        idle = resident_kib(server)
        sign.touch()
        most = idle
        for _ in range(200):
            time.sleep(0.1)
            most = max(most, resident_kib(server))
        had = _ask(crowd)
    growth = most / idle
    _note("memory", {"idle": idle, "most": most, "viewer": had})
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
            time.sleep(_SETTLE_S)
            many = _watch(bench, server, agent, crowd)
            full = resident_kib(server)
    _note("viewers", {"one": one, "many": many})
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
    looks = {
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
    time.sleep(_SETTLE_S)
    return server.process.pid


def _against(
    name: str,
    ours: list[float],
    other: list[float],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Figure:
    found = ratio(ours, other)
    low, middle, high = statistics.quantiles(ours, n=4)
    ok = None if at_most is None else found <= at_most
    ok = ok if at_least is None else found >= at_least
    return Figure(
        name=name,
        value=round(middle, 3),
        unit=unit,
        low=round(low, 3),
        high=round(high, 3),
        bare=round(statistics.median(other), 3),
        ratio=round(found, 3),
        goal=at_most or at_least,
        ok=ok,
    )


def _note(what: str, words: dict[str, object]) -> None:
    print(f"{what}: {json.dumps(words)}", file=sys.stderr, flush=True)


@contextmanager
def laboratory(name: str | None) -> Iterator[Lab]:
    """A lab that is up, or one made for this and taken away again."""
    if name:
        yield Lab.attach(name)
        return
    many = {"rate_limits": {"stream_logs_max_concurrent": 2 * VIEWERS}}
    parts = {"slurm", "oidc", "server", "agents"}
    with Lab("live", parts=parts, settings=many, access_token_ttl_s=7200) as lab:
        time.sleep(_SETTLE_S)
        yield lab
    lab.down(purge=True)


def measure(lab: Lab, rounds: int, sections: tuple[str, ...] = SECTIONS) -> list[Figure]:
    """Everything; each figure is printed when it is known."""
    bench, found = Bench(lab), []
    todo = {
        "latency": lambda: latency(bench, rounds),
        "throughput": lambda: throughput(bench, rounds),
        "memory": lambda: memory(bench),
        "viewers": lambda: viewers(bench),
    }
    for name in sections:
        bench.sign_in()
        for figure in todo[name]():
            figure.print()
            found.append(figure)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.logs_live", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="7 for a result")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--lab", help="one that is up, of a server and agents")
    asked = parser.parse_args()
    with laboratory(asked.lab) as lab:
        found = measure(lab, asked.rounds, tuple(asked.only.split(",")))
    return 0 if all(each.ok is not False for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
