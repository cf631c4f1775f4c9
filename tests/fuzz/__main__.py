"""`python -m tests.fuzz NAME`, or `--all` for every target. One JSON line a target."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from tests.fuzz.engine import ROOT, fuzz, names


def main() -> int:
    """The exit status: 1 if an input failed."""
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("name", nargs="?", metavar="NAME", choices=names(), help=", ".join(names()))
    asked.add_argument("--all", action="store_true", help="every target")
    asked.add_argument("--seconds", type=float, default=300.0, help="for each target")
    asked.add_argument("--seed", type=int, default=1, help="of the random numbers")
    asked.add_argument("--at-once", type=int, default=2, help="how many targets of all")
    given = asked.parse_args()
    if bool(given.name) is given.all:
        asked.error("name one target, or say --all")
    if given.all:
        return run_all(given.seconds, given.seed, given.at_once)
    outcome = fuzz(given.name, seconds=given.seconds, seed=given.seed)
    print(json.dumps(asdict(outcome)), flush=True)
    return 1 if outcome.failures else 0


def run_all(seconds: float, seed: int, at_once: int) -> int:
    """Run each target in a process of its own, so many at once."""

    def one(name: str) -> int:
        argv = [sys.executable, "-m", "tests.fuzz", name]
        argv += ["--seconds", str(seconds), "--seed", str(seed)]
        return subprocess.run(argv, cwd=ROOT, check=False).returncode

    with ThreadPoolExecutor(at_once) as pool:
        return 1 if any(list(pool.map(one, names()))) else 0


if __name__ == "__main__":
    sys.exit(main())
