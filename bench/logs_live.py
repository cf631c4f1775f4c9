"""Following a job's output, from the write of the job's process to what a viewer prints.

    just bench logs-live [--rounds N] [--only latency,throughput,memory,viewers] [--lab NAME]

Real are Slurm, the job, its file, the agent, the server and `lattice logs --follow` in a pipe.
Beside it, in the same rounds: a bare relay of the same shape, `ssh tail -f`, and `sattach`. One
JSON line a figure; a ratio is the median of the rounds' own ratios. Needs root and a lab.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.figures import Figure, paired
from bench.logs_live_jobs import (
    FLOOD_BYTES,
    TICKER,
    Bench,
    ended,
    flood,
    flood_mb_per_s,
    line_ages_ms,
    note,
)
from bench.logs_live_peers import Ssh, bare_relay, sattach
from bench.logs_live_viewers import SETTLE_S, VIEWERS, memory, viewers
from lab.laboratory import Lab

ROUNDS = 7
LINES, SKIPPED = 150, 50
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
            note("latency", {name: round(each[-1], 2) for name, each in ages.items()})
    return [
        paired("follow latency p50, bare relay", "ms", ages["ours"], ages["bare"], at_most=1.3),
        paired("follow latency p50, ssh tail -f", "ms", ages["ours"], ages["ssh"]),
    ]


def throughput(bench: Bench, rounds: int) -> list[Figure]:
    """Megabytes a second from a job that writes as fast as it can."""
    speeds: dict[str, list[float]] = {"ours": [], "ssh": [], "sattach": []}
    with Ssh(bench).serving() as ssh:
        for _ in range(rounds):
            with flood(bench) as (job, sign), ended(bench.follow(job)) as printed:
                speeds["ours"].append(flood_mb_per_s(printed, sign, FLOOD_BYTES))
            with flood(bench) as (job, sign), ended(ssh.tail(job, "+1")) as printed:
                speeds["ssh"].append(flood_mb_per_s(printed, sign, FLOOD_BYTES))
            with (
                flood(bench, with_srun=True) as (job, sign),
                ended(sattach(bench, job)) as printed,
            ):
                speeds["sattach"].append(flood_mb_per_s(printed, sign, FLOOD_BYTES))
            note("throughput", {name: round(each[-1], 1) for name, each in speeds.items()})
    ours = speeds["ours"]
    return [
        paired("follow throughput, ssh tail -f", "MB/s", ours, speeds["ssh"], at_least=0.85),
        paired("follow throughput, sattach", "MB/s", ours, speeds["sattach"], at_least=3.0),
    ]


@contextmanager
def laboratory(name: str | None) -> Iterator[Lab]:
    """A lab that is up, or one made for this and taken away again."""
    if name:
        yield Lab.attach(name)
        return
    many = {"rate_limits": {"stream_logs_max_concurrent": 2 * VIEWERS}}
    parts = {"slurm", "oidc", "server", "agents"}
    with Lab("live", parts=parts, settings=many, access_token_ttl_s=7200) as lab:
        time.sleep(SETTLE_S)
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
