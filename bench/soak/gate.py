"""The whole gate again and again, in fresh clones: the same answer, in time.

just soak gate [RUNS] [--stolen PERCENT]

`--stolen` takes that share of every core away meanwhile. One line a run: its seconds, those of
`check` in it, what pytest counted, and the commit. Exit status 1 if one run failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure
from bench.stolen_cores import stolen

_ROOT = Path(__file__).parents[2]
_GOAL_S = {False: 720.0, True: 960.0}
"""By whether cores are stolen."""
_CHECK = re.compile(r"^check: (\d+) s$", re.MULTILINE)
_SUMMARY = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed).*) in [\d.]+s", re.MULTILINE)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("runs", nargs="?", type=int, default=1)
    asked.add_argument("--stolen", type=float, default=0.0, metavar="PERCENT")
    words = asked.parse_args()
    ended_well = [_run(words.stolen) for _ in range(words.runs)]
    return 0 if all(ended_well) else 1


def _run(percent: float) -> bool:
    with tempfile.TemporaryDirectory(prefix="lattice-gate-", dir="/var/tmp") as folder:
        clone = Path(folder) / "lattice"
        subprocess.run(["git", "clone", "--quiet", str(_ROOT), str(clone)], check=True)
        commit = _commit(clone)
        # The people of its lab run what is installed there.
        Path(folder).chmod(0o755)
        begun = time.monotonic()
        with stolen(percent):
            ended = subprocess.run(
                ["bash", ".ci/run"],
                cwd=clone,
                env={**os.environ, "CI": "true"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        seconds = time.monotonic() - begun
    print(ended.stdout, file=sys.stderr, flush=True)
    check = _CHECK.search(ended.stdout)
    goal = _GOAL_S[percent > 0]
    ok = ended.returncode == 0 and seconds <= goal
    Figure(
        name=f"gate, {percent:.0f} % of each core stolen" if percent else "gate",
        value=round(seconds, 1),
        unit="s",
        goal=goal,
        ok=ok,
    ).print(
        check_s=int(check[1]) if check else None,
        exit_status=ended.returncode,
        counted=_SUMMARY.findall(ended.stdout),
        commit=commit,
    )
    return ok


def _commit(checkout: Path) -> str:
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(
        asked, cwd=checkout, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
