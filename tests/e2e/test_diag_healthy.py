"""Ten jobs of different kinds that are all well: looked at again and again, no rule cries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, takewhile

import pytest

from lab.laboratory import Lab
from tests.e2e.diagnosed import PAUSE_S, page
from tests.e2e.people import Person
from tests.e2e.topped import debugged

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(420),
]

LOOKED_S = 150.0
"""Longer than any rule of the usual targets waits, but the one about buffered output."""
PYTHON = "/usr/bin/python3 -u -c"
_RECEIVES = (
    'import socket; d = socket.create_server(("", 47013)); p, _ = d.accept()\n'
    "while p.recv(1 << 16): pass"
)
_SENDS = (
    'import socket, time; time.sleep(3); p = socket.create_connection(("n2", 47013))\n'
    'while True: p.sendall(b"x" * 200000); time.sleep(0.1); print(1)'
)
_COUNTS = (
    "import time\n"
    "while True:\n"
    "    until = time.monotonic() + 0.1\n"
    "    while time.monotonic() < until: pass\n"
    "    time.sleep(0.4); print(1)"
)
_HOLDS = "import time; x = bytearray(100 << 20)\nwhile True: time.sleep(1); print(len(x))"
_PAIR = (
    f"srun -N1 -n1 -w n2 --overlap {PYTHON} '{_RECEIVES}' & "
    f"srun -N1 -n1 -w n1 --overlap {PYTHON} '{_SENDS}' & wait"
)
_WRITES = (
    "while :; do dd if=/dev/zero of=$HOME/written bs=1M count=4 conv=fsync 2>/dev/null; "
    "sleep 0.5; done"
)
LOADS: dict[str, tuple[tuple[str, ...], str]] = {
    "burns a core beside a GPU": (
        ("-w", "n1", "--gres=gpu:1"),
        "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.1; echo on; done",
    ),
    "writes": (("-w", "n1"), _WRITES),
    "reads": (
        ("-w", "n2"),
        "head -c 8000000 /dev/zero > $HOME/read; while :; do wc -c < $HOME/read; sleep 0.3; done",
    ),
    "sends and receives": (("-w", "n[1-2]"), _PAIR),
    "sleeps and prints": (("-w", "n3"), "while :; do sleep 10; echo still here; done"),
    "holds memory": (("-w", "n3"), f"{PYTHON} '{_HOLDS}'"),
    "runs on two nodes": (
        ("-w", "n[2-3]", "-N2", "-n2"),
        "srun -n2 -N2 sh -c 'while :; do echo on; sleep 0.3; done'",
    ),
    "has four ranks alike": (
        ("-w", "n[2-3]", "-n4", "--ntasks-per-node=2"),
        f"srun -n4 {PYTHON} '{_COUNTS}'",
    ),
    "takes many short steps": (("-w", "n2"), "while :; do srun -n1 echo step; sleep 1; done"),
    "computes and writes": (
        ("-w", "n3"),
        "while :; do head -c 3000000 /dev/urandom | gzip > $HOME/packed; sleep 0.4; echo on; done",
    ),
}


@pytest.fixture
def jobs(lab: Lab, alice: Person) -> Iterator[dict[str, int]]:
    """All of them at once, by what they do; every other one measured no more often than usual."""
    lab.jobs.cancel_all()
    with ExitStack() as running:
        running.callback(lab.jobs.cancel_all)
        made = {
            name: lab.sbatch("alice", *words, wrap=work)
            if number % 2
            else running.enter_context(debugged(lab, alice, *words, wrap=work))
            for number, (name, (words, work)) in enumerate(LOADS.items())
        }
        for job in made.values():
            lab.wait_job_state(job, "RUNNING")
        yield made


@pytest.mark.spec("DIAG-1")
def test_no_rule_cries_of_ten_jobs_that_are_well(alice: Person, jobs: dict[str, int]) -> None:
    assert len(jobs) == 10
    cries: list[tuple[str, str, str]] = []
    seen: dict[str, int] = dict.fromkeys(jobs, 0)
    until_s = time.monotonic() + LOOKED_S
    for name, job in takewhile(lambda _: time.monotonic() < until_s, cycle(jobs.items())):
        time.sleep(PAUSE_S)
        answer = page(alice, job)
        covered = answer["covered"]
        seen[name] += covered["measured"] == covered["nodes"]
        cries += [
            (name, each["rule"], each["evidence"])
            for each in answer["findings"]
            if each["verdict"] in {"attention", "bad"}
        ]
    assert cries == []
    # Every node of each was seen, more than once: who sees nothing has nothing to cry about.
    assert min(seen.values()) >= 3, seen
