"""What the eBPF program adds to the calls of a job.

    just bench latency [--rounds 15]

A loop in C makes the cheapest calls of each kind, in control groups named as Slurm names a job's.
In each round it runs once without the program in the kernel and once with it, and each is first in
every second round. A figure is the median of the rounds; of a round it is the best of 20 batches,
so that of other work the least is in it. As root, and while no lab is up: the node of a lab has
loaded the program too. One JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench.agent_groups import JOIN, SlurmJobs
from bench.figures import load, paired
from lab import users
from lattice.base import packet
from lattice.helper import bpfload

ROUNDS = 15
_LOOP = Path(__file__).with_name("latency_calls.c")
_LOADED = re.compile(r"\bbpf_prog_[0-9a-f]+_begin_call\b")
_JOB = 1


@contextmanager
def program() -> Iterator[None]:
    """The program is in the kernel meanwhile."""
    loaded = bpfload.load(bpfload.default_object())
    try:
        yield
    finally:
        maps = (loaded.jobs, loaded.namespaces, loaded.lost, loaded.peers, loaded.walk)
        packet.close_all((*maps, *loaded.links))


def loaded_by_others() -> int:
    """How often the program is in the kernel, as the kernel lists compiled programs."""
    return len(_LOADED.findall(Path("/proc/kallsyms").read_text()))


def calls(loop: Path, groups: str, file: Path) -> dict[str, float]:
    """Nanoseconds of a call of each kind, in a job."""
    argv = ["/bin/sh", "-c", JOIN, "join", groups, str(loop), str(file)]
    found: dict[str, float] = json.loads(subprocess.check_output(argv, text=True))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.latency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7")
    rounds = max(parser.parse_args().rounds, 7)
    if others := loaded_by_others():
        raise SystemExit(
            f"The program is in the kernel {others} times already: end labs and helpers."
        )
    users.ensure_accounts()
    jobs = SlurmJobs()
    took: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="bench-latency-") as folder:
        loop = Path(folder) / "calls"
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", loop, _LOOP], check=True)
        try:
            groups = jobs.groups(_JOB)
            for number in range(rounds):
                for is_loaded in (True, False) if number % 2 else (False, True):
                    with program() if is_loaded else nullcontext():
                        took[is_loaded].append(calls(loop, groups, Path(folder) / "file"))
        finally:
            jobs.close()
    for name in took[False][0]:
        ours, bare = ([each[name] for each in took[is_loaded]] for is_loaded in (True, False))
        paired(name, "ns", ours, bare).print(rounds=rounds, load=load())
    return 0


if __name__ == "__main__":
    sys.exit(main())
