"""Following a job's output, from the write of the job's process to what a viewer prints.

    just bench logs-live [--rounds N] [--only latency,throughput,memory,viewers] [--lab NAME]

Real are Slurm, the job, its file, the agent, the server and `lattice logs --follow` in a pipe.
Beside it, in the same rounds: a bare relay of the same shape, `ssh tail -f`, and `sattach`. A flood
is of varied lines, as jobs write them, and once more of one constant line. One JSON line a figure;
a ratio is the median of the rounds' own ratios. Needs root and a lab.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from bench.figures import Figure, load, measured, paired
from bench.logs_live_costs import (
    Costs,
    Follower,
    bare_follower,
    lattice_follower,
    ssh_follower,
    standing_pids,
)
from bench.logs_live_jobs import (
    FLOOD_BYTES,
    FLOOD_TEXTS,
    TICKER,
    Bench,
    Job,
    TickerLines,
    ended,
    flood,
    flood_mb_per_s,
    note,
    until_ready,
)
from bench.logs_live_peers import Ssh, sattach
from bench.logs_live_viewers import SETTLE_S, VIEWERS, memory, viewers
from bench.measuring import Meter
from lab.laboratory import Lab

ROUNDS = 7
LINES, SKIPPED = 150, 50
SECTIONS = ("latency", "throughput", "memory", "viewers")
LATENCY_GOAL = 1.2
SSH_GOAL, SATTACH_GOAL = 1.0, 4.0
WRITTEN_GOAL_MB_S = 300.0
"""A job that writes slower would be what limits."""

Open = Callable[[Job], AbstractContextManager[Follower]]


def latency(bench: Bench, rounds: int) -> list[Figure]:
    """The median age of a line when a viewer prints it, and the processor time of a line."""
    ages: dict[str, list[float]] = {"ours": [], "bare": [], "ssh": []}
    costs = Costs(bench)
    with bench.job(TICKER) as job, Ssh(bench).serving() as ssh:
        followers: dict[str, Open] = {
            "ours": lambda job: lattice_follower(bench, job, "--tail", "1"),
            "bare": lambda job: bare_follower(bench, job),
            "ssh": lambda job: ssh_follower(ssh, job, "1"),
        }
        for _ in range(rounds):
            for name, follow in followers.items():
                with follow(job) as follower:
                    lines = TickerLines(follower.descriptor)
                    lines.ages_ms(SKIPPED)
                    with costs.of(name, follower, scale=1000 / LINES):
                        ages[name].append(statistics.median(lines.ages_ms(LINES)))
            note("latency", {name: round(each[-1], 2) for name, each in ages.items()})
    ours = ages["ours"]
    return [
        paired("follow latency p50, bare relay", "ms", ours, ages["bare"], at_most=LATENCY_GOAL),
        paired("follow latency p50, ssh tail -f", "ms", ours, ages["ssh"]),
        *costs.figures("follow processor time a line", "ms"),
    ]


def throughput(bench: Bench, rounds: int) -> list[Figure]:
    """Megabytes a second from a job that writes as fast as it can, and their processor time."""
    floods = {text: Floods(bench, text) for text in FLOOD_TEXTS}
    with Ssh(bench).serving() as ssh:
        for _ in range(rounds):
            for each in floods.values():
                each.run(ssh)
    return [figure for each in floods.values() for figure in each.figures()]


class Floods:
    """Rounds with one text."""

    def __init__(self, bench: Bench, text: str) -> None:
        self._bench = bench
        self._text = text
        self._costs = Costs(bench)
        self._speeds: dict[str, list[float]] = {"ours": [], "bare": [], "ssh": [], "sattach": []}
        self._written: list[float] = []

    def run(self, ssh: Ssh) -> None:
        """One round."""
        followers: dict[str, Open] = {
            "ours": lambda job: lattice_follower(self._bench, job),
            "bare": lambda job: bare_follower(self._bench, job),
            "ssh": lambda job: ssh_follower(ssh, job, "+1"),
        }
        for name, follow in followers.items():
            with flood(self._bench, self._text) as wave, follow(wave.job) as follower:
                until_ready(follower.descriptor)
                self._until_calm()
                with self._costs.of(name, follower, deferred=True):
                    speed = flood_mb_per_s(follower.descriptor, wave.sign, FLOOD_BYTES)
                self._speeds[name].append(speed)
                self._written.append(wave.written_mb_per_s())
        with (
            flood(self._bench, self._text, with_srun=True) as wave,
            ended(sattach(self._bench, wave.job)) as printed,
        ):
            until_ready(printed)
            self._until_calm()
            self._speeds["sattach"].append(flood_mb_per_s(printed, wave.sign, FLOOD_BYTES))
        note(self._text, {name: round(each[-1], 1) for name, each in self._speeds.items()})

    def _until_calm(self) -> None:
        """The agent has kept the flood before: of jobs without followers it does so later."""
        Meter(standing_pids(self._bench)).until_calm()

    def figures(self) -> list[Figure]:
        """Goals are for varied lines."""
        speeds, ours, text = self._speeds, self._speeds["ours"], self._text
        judged = text == next(iter(FLOOD_TEXTS))
        name = f"follow throughput, {text}"
        ssh_goal, sattach_goal = (SSH_GOAL, SATTACH_GOAL) if judged else (None, None)
        return [
            paired(f"{name}, ssh tail -f", "MB/s", ours, speeds["ssh"], at_least=ssh_goal),
            paired(f"{name}, sattach", "MB/s", ours, speeds["sattach"], at_least=sattach_goal),
            paired(f"{name}, bare relay", "MB/s", ours, speeds["bare"]),
            measured(
                f"{name}, written by the job", "MB/s", self._written, at_least=WRITTEN_GOAL_MB_S
            ),
            *self._costs.figures(f"follow processor time for 100 MB, {text}", "s"),
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


def measure(lab: Lab, rounds: int, sections: Sequence[str] = SECTIONS) -> list[Figure]:
    """Everything; each figure is printed when it is known."""
    bench, found = Bench(lab), []
    todo = {
        "latency": lambda: latency(bench, rounds),
        "throughput": lambda: throughput(bench, rounds),
        "memory": lambda: memory(bench),
        "viewers": lambda: viewers(bench, rounds),
    }
    for name in sections:
        bench.sign_in()
        for figure in todo[name]():
            figure.print(rounds=rounds, load=load())
            found.append(figure)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.logs_live", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="7 for a result")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--lab", help="one that is up, of a server and agents")
    asked = parser.parse_args()
    with laboratory(asked.lab) as lab:
        found = measure(lab, asked.rounds, asked.only.split(","))
    return 0 if all(each.ok is not False for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
