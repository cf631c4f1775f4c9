"""What `bench.soak.hostile` prepares in its lab, and how it looks at the replicas."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.measuring import resident_kb
from lab.command import LabError
from lab.files import give
from lab.identity import children
from lab.laboratory import Lab
from lab.screen import Screen
from lab.server import Server
from tests.e2e.at_terminal import at
from tests.e2e.own_figures import ask
from tests.e2e.people import Person
from tests.eventually import eventually

HONEST = "erin"
_NODE = "n2"
_WRITERS_NODE = "n1"
_STORED_WITHIN_S = 1200.0
_REST_S = 10.0
_LOOK_EVERY_S = 1.0
_PROFILE = "sleep 61.5\n"
"""Longer than the gate waits, so that no job comes of it."""
_TERMINAL = ("sh", "-c", "echo 'ready$ \\c'; exec cat >/dev/null")

WRITER = """
import os, random, sys
left, chance = int(sys.argv[1]), random.Random(1)

def line():
    bits = chance.choice((8, 16, 32, 48))
    return b"%d %x\\n" % (chance.randrange(1000), chance.getrandbits(bits))

blocks = [b"".join(line() for _ in range(90_000)) for _ in range(32)]
turn = 0
while left > 0:
    left -= os.write(1, blocks[turn % len(blocks)])
    turn += 1
os.write(1, b"\\nneedle\\n")
"""
"""So many bytes of short lines, and last the one that a grep looks for."""


class Watch:
    """The most memory that each replica had, by phase; looked at once a second."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self.phase = "rest"
        self.most: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        """KiB, by phase and replica."""
        self.rest_kb: dict[str, int] = {}
        """The median of a while before anything hostile."""
        self.ended: set[str] = set()
        """Replicas that were seen not to run."""
        self._pids = {each.name: each.process.pid for each in servers}

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """From a while of rest on."""
        seen: list[dict[str, int]] = []
        for _ in range(int(_REST_S / _LOOK_EVERY_S)):
            seen.append(self._look())
            time.sleep(_LOOK_EVERY_S)
        self.rest_kb = {
            name: int(statistics.median(each.get(name, 0) for each in seen)) for name in self._pids
        }
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_LOOK_EVERY_S):
                self._look()

        thread = threading.Thread(target=watch, name="memory")
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()

    def _look(self) -> dict[str, int]:
        found = {}
        most = self.most[self.phase]
        for name, pid in self._pids.items():
            try:
                found[name] = resident_kb(pid) + sum(map(resident_kb, children(pid)))
            except (OSError, AssertionError):
                # Gone, or a zombie without memory.
                self.ended.add(name)
            else:
                most[name] = max(most[name], found[name])
        return found


def running_job(lab: Lab, person: Person) -> int:
    """A job of hers that sleeps, known to the replicas."""
    job = lab.sbatch(person.name, f"--nodelist={_NODE}", "--mem=200", wrap="sleep 7200")
    lab.wait_job_state(job, "RUNNING")
    for server in lab.servers:
        eventually(partial(_known, lab, server, person, job))
    return job


def _known(lab: Lab, server: Server, person: Person, job: int) -> Any:
    try:
        return json.loads(ask(lab, server, person, f"/v1/allocations/{job}"))
    except LabError:
        return None


def stored_log(lab: Lab, person: Person, size_bytes: int, watch: Watch) -> int:
    """A finished job whose output is stored to its last line."""
    watch.phase = "storing"
    program = lab.layout.home / person.name / "writer.py"
    program.write_text(WRITER)
    give(program, person.name)
    wrap = f"exec /usr/bin/python3 /home/{person.name}/{program.name} {size_bytes}"
    job = lab.sbatch(person.name, f"--nodelist={_WRITERS_NODE}", "--mem=500", wrap=wrap)
    lab.wait_job_state(job, "COMPLETED", timeout_s=_STORED_WITHIN_S)
    eventually(
        lambda: _stored_bytes(lab, person, job),
        lambda found: found >= size_bytes,
        patience_s=_STORED_WITHIN_S,
        pause_s=1.0,
    )
    eventually(
        lambda: person.tries("logs", str(job), "--tail", "1").out,
        lambda out: out == "needle\n",
        patience_s=_STORED_WITHIN_S,
        pause_s=1.0,
    )
    return job


def _stored_bytes(lab: Lab, person: Person, job: int) -> int:
    try:
        told = json.loads(ask(lab, lab.servers[0], person, f"/v1/allocations/{job}/logs/streams"))
    except (LabError, OSError):
        return 0
    return sum(int(each["bytes"]) for each in told["streams"])


@contextmanager
def slow_profile(lab: Lab, user: str) -> Iterator[None]:
    """Every submit of hers waits for it."""
    file = lab.layout.home / user / ".profile"
    file.write_text(_PROFILE)
    give(file, user)
    try:
        yield
    finally:
        file.unlink()


@contextmanager
def honest_terminal(person: Person, job: int) -> Iterator[Screen]:
    """`lattice attach` at a terminal that echoes."""
    with at(person, "attach", str(job), "--node", _NODE, "--", *_TERMINAL) as shown:
        shown.until(r"ready\$ ")
        yield shown
