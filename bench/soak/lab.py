"""Ups and downs of a lab without a leak: `python -m bench.soak.lab [CYCLES]`.

Each cycle starts every engine, runs a job over three nodes, and takes all of it down; half of the
cycles end by killing the program that holds the lab in mid-use, so that the next `up` clears up.
One JSON line a figure; exit status 1 if anything was left behind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lab.footprint import Footprint
from lab.laboratory import ENGINES, Lab

_CHECKOUT = Path(__file__).parents[2]
_NAME = "soak"
_ABANDON = f"""
from lab.laboratory import ENGINES, Lab
lab = Lab({_NAME!r}, parts=ENGINES)
lab.up()
lab.wait_job_state(lab.sbatch("alice", "-N3", wrap="srun sleep 600"), "RUNNING")
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass
class Tally:
    """What the cycles measured, and what they left."""

    up_s: list[float] = field(default_factory=list)
    down_s: list[float] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    def count(self, footprint: Footprint) -> None:
        for kind in ("processes", "mounts", "network_namespaces", "control_groups", "ports"):
            self.left[kind] = self.left.get(kind, 0) + len(getattr(footprint, kind))


def cycle(tally: Tally, *, abandon_first: bool) -> None:
    """One up and one down; before it, if asked, a lab whose holder is killed."""
    if abandon_first:
        subprocess.run([sys.executable, "-c", _ABANDON], cwd=_CHECKOUT, check=False)
    lab = Lab(_NAME, parts=ENGINES)
    began = time.monotonic()
    lab.up()
    tally.up_s.append(time.monotonic() - began)
    lab.jobs.cancel_all()
    lab.wait_job_state(lab.sbatch("alice", "-N3", wrap="srun hostname"), "COMPLETED", 60)
    began = time.monotonic()
    lab.down()
    tally.down_s.append(time.monotonic() - began)
    tally.count(Footprint.of(lab.layout))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def kernel_groups() -> int:
    """Control groups the kernel holds in the memory hierarchy, removed ones included.

    A removed group stays while cached pages are charged to it, so the cache goes first.
    """
    Path("/proc/sys/vm/drop_caches").write_text("3")
    rows = [line.split() for line in Path("/proc/cgroups").read_text().splitlines()]
    return next(int(row[2]) for row in rows if row[0] == "memory")


def tell(figure: str, value: float, unit: str, **more: float) -> None:
    print(json.dumps({"bench": "soak.lab", "figure": figure, "value": value, "unit": unit, **more}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cycles", nargs="?", type=int, default=20)
    cycles = parser.parse_args().cycles
    tally = Tally()
    Lab(_NAME, parts=ENGINES).down(purge=True)
    files = open_files()
    groups = kernel_groups()
    for number in range(cycles):
        cycle(tally, abandon_first=number % 2 == 1)
        print(f"cycle {number + 1}: up {tally.up_s[-1]:.1f} s", file=sys.stderr, flush=True)
    Lab(_NAME, parts=ENGINES).down(purge=True)

    tell("cycles", cycles, "cycles")
    for figure, times in (("up", tally.up_s), ("down", tally.down_s)):
        most = round(max(times), 2)
        tell(figure, round(statistics.median(times), 2), "s", least=round(min(times), 2), most=most)
    for kind, number in tally.left.items():
        tell(f"left_{kind}", number, "things")
    tell("open_files_growth", open_files() - files, "files")
    tell("kernel_memory_groups_growth", kernel_groups() - groups, "groups")
    return 1 if any(tally.left.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
