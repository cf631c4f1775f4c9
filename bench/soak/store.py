"""The object store away for ten minutes while jobs write, end and are read; content compared.

just soak store [SECONDS]

Its own lab. A long job writes all the time, short ones come and go, and one viewer follows the long
job. Afterwards every line of every job is asked for again.
"""

from __future__ import annotations

import json
import sys
import time

from lab.laboratory import Lab
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually

_NAME = "soak"
_PARTS = ("slurm", "oidc", "etcd", "seaweedfs", "server", "agents")
_SHORT_LINES = 200
_PACE_S = 0.02


def main(away_s: float) -> None:
    lab = Lab(_NAME, parts=_PARTS, servers=2)
    try:
        lab.up()
        _soak(lab, Person(lab, "alice").logged_in(), away_s)
    finally:
        lab.down(purge=True)


def _soak(lab: Lab, alice: Person, away_s: float) -> None:
    lines = int(away_s / _PACE_S * 0.6)
    long = lab.sbatch("alice", wrap=script("long", lines, pause_s=_PACE_S))
    lab.wait_job_state(long, "RUNNING")
    began = time.monotonic()
    lab.seaweedfs.process.freeze()
    following = lab.popen_as("alice", ["lattice", "logs", str(long), "--follow"], env=alice.bearer)
    short: list[int] = []
    while time.monotonic() - began < away_s:
        short.append(lab.sbatch("alice", wrap=script(f"s{len(short)}", _SHORT_LINES)))
        time.sleep(10)
    lab.seaweedfs.process.thaw()
    away_s = time.monotonic() - began
    followed, words = following.communicate(timeout=120)
    assert numbers(followed.splitlines(), "long") == list(range(lines)), words
    back = time.monotonic()
    for number, job in enumerate(short):
        lab.wait_job_state(job, "COMPLETED", timeout_s=300)
        _complete(alice, job, f"s{number}", _SHORT_LINES)
    _complete(alice, long, "long", lines)
    figure = {
        "name": "lines there, once and in order, after the store was away",
        "value": lines + _SHORT_LINES * len(short),
        "unit": "lines",
        "bare": None,
        "ratio": None,
        "goal": lines + _SHORT_LINES * len(short),
        "ok": True,
        "jobs": 1 + len(short),
        "away_s": round(away_s, 1),
        "complete_after_s": round(time.monotonic() - back, 1),
    }
    print(json.dumps(figure))


def _complete(alice: Person, job: int, writer: str, count: int) -> None:
    seen = eventually(
        lambda: numbers(alice.tries("logs", str(job)).out.splitlines(), writer),
        lambda found: len(found) >= count,
        patience_s=300,
    )
    assert seen == list(range(count)), f"job {job}: {len(seen)} of {count}"


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0)
