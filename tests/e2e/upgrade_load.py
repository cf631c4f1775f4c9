"""What people do all the time while Lattice is upgraded under them, and the proof that it went on.

Each job writes numbered lines with checksums until it is let go. What followers were shown is
compared with the job's own file, byte by byte.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.laboratory import Lab
from tests.e2e.log_lines import Gate, numbers
from tests.e2e.people import Person
from tests.eventually import eventually

_WRITER = r"""
import os, sys, time, zlib
writer, gate, number = sys.argv[1], os.path.expanduser("~/" + sys.argv[2]), 0
node = os.environ["SLURMD_NODENAME"]
while not os.path.exists(gate):
    body = f"{node} {writer}.0 {number} " + "x" * 20
    os.write(1, f"{body} {zlib.crc32(body.encode()):08x}\n".encode())
    number += 1
    time.sleep(0.05)
"""
COUNT = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.05; done"


class Job:
    """A job on one node that writes until the gate opens."""

    def __init__(self, lab: Lab, node: str, gate: str) -> None:
        self.node = node
        self.writer = f"w{node}"
        command = f"/usr/bin/python3 -c '{_WRITER}' {self.writer} {gate}"
        self.id = lab.sbatch("alice", "-w", node, "-o", f"/home/alice/{node}.out", wrap=command)
        self._file = lab.layout.home / "alice" / f"{node}.out"
        lab.wait_job_state(self.id, "RUNNING")

    @property
    def written(self) -> list[str]:
        """Every line of its file."""
        return self._file.read_text().splitlines()


class Viewer:
    """A command of a person's that runs all the time, and what it has printed."""

    def __init__(self, person: Person, program: Path, *words: str) -> None:
        argv = [str(program), *words]
        self.words = words
        self.process = person.lab.popen_as(person.name, argv, env=person.bearer)
        self.lines: list[str] = []
        self._said = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def goes_on(self) -> bool:
        return self.process.poll() is None

    def shows_more(self) -> None:
        """Wait for something new: what it showed before proves nothing about now."""
        before = len(self.lines)
        eventually(
            lambda: (len(self.lines), self.goes_on),
            lambda found: found[0] > before + 2 or not found[1],
        )
        assert self.goes_on, self.end()

    def ended(self) -> str:
        """Wait until it ends by itself, and return what it said about it."""
        self.process.wait(timeout=120)
        return self.end()

    def end(self) -> str:
        if self.process.stdout is not None and self.process.stdout.closed:
            return self._said
        if self.goes_on:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with self.process.stdout, self.process.stderr:
            self._said = self.process.stderr.read()
        return self._said


class Calls:
    """One call after another, by turns of several clients, each of which must succeed."""

    def __init__(self, person: Person, programs: list[Path], *calls: tuple[str, ...]) -> None:
        self._person = person
        self._turns = [(program, call) for call in calls for program in programs]
        self.made = 0
        self.faults: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.2):
            program, call = self._turns[self.made % len(self._turns)]
            done = self._person.lab.run_as(
                self._person.name, [str(program), *call], env=self._person.bearer
            )
            self.made += 1
            if done.returncode != 0:
                self.faults.append(f"{' '.join(call)}: {done.returncode} {done.stderr}")

    def goes_on(self) -> None:
        before = self.made
        eventually(lambda: self.made, lambda made: made > before + 2)
        assert not self.faults, self.faults

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Load:
    """Three jobs, and everything that looks at them."""

    def __init__(
        self, lab: Lab, older: Callable[[str], Path], newer: Callable[[str], Path]
    ) -> None:
        self.lab, self._newer = lab, newer
        self.alice = Person(lab, "alice").logged_in()
        gate = Gate(lab, "upgraded")
        self._open = gate.open
        self.jobs = [Job(lab, node, "upgraded") for node in ("n1", "n2", "n3")]
        first = str(self.jobs[0].id)
        clients = [older("lattice"), newer("lattice"), newer("lattice")]
        self.followers = [
            Viewer(self.alice, client, "logs", str(job.id), "--follow", "--prefix", "none")
            for client, job in zip(clients, self.jobs, strict=True)
        ]
        self.terminals = [self._terminal(older("lattice"), first)]
        self.watch = Viewer(self.alice, newer("lattice"), "watch", first, "-o", "json")
        self.calls = Calls(
            self.alice,
            clients[:2],
            ("status", "-o", "json"),
            ("logs", first, "--tail", "1"),
            ("top", first, "--once"),
            ("whoami",),
        )

    def _terminal(self, client: Path, job: str) -> Viewer:
        return Viewer(self.alice, client, "attach", job, "--", "sh", "-c", COUNT)

    def open_terminals(self) -> None:
        """One more in each job, by the programs that its node has now."""
        self.terminals += [self._terminal(self._newer("lattice"), str(job.id)) for job in self.jobs]
        for each in self.terminals:
            each.shows_more()

    def goes_on(self) -> None:
        """Everything shows more than before, and another job runs, by both gate and agents."""
        for each in (*self.followers, *self.terminals):
            each.shows_more()
        self.calls.goes_on()
        submitted = self.alice.tries("submit", "--walltime", "5m", "--", "echo", "submitted")
        assert submitted.code == 0, submitted
        job = submitted.out.split()[-1]
        self.lab.wait_job_state(job, "COMPLETED")
        eventually(lambda: self.alice.tries("logs", job).out, lambda out: out == "submitted\n")

    def had_everything(self) -> None:
        """Every line, key and event, each once."""
        assert all(each.goes_on for each in (*self.followers, *self.terminals, self.watch))
        self._open()
        for job in self.jobs:
            self.lab.wait_job_state(job.id, "COMPLETED", timeout_s=180)
        for follower, job in zip(self.followers, self.jobs, strict=True):
            said = follower.ended()
            assert follower.process.returncode == 0, said
            assert follower.lines == job.written, said
            assert numbers(job.written, job.writer) == list(range(len(job.written)))
            stored = self.alice.tries("logs", str(job.id), "--prefix", "none")
            assert stored.out.splitlines() == job.written
        for terminal in self.terminals:
            terminal.ended()
            shown = [int(line) for line in terminal.lines]
            assert shown == list(range(len(shown)))
            assert len(shown) > 50
        self.watch.ended()
        events = [json.loads(line)["type"] for line in self.watch.lines]
        assert events.count("ended") == 1
        self.calls.end()
        assert not self.calls.faults, self.calls.faults

    def close(self) -> None:
        self._open()
        self.calls.end()
        for each in (*self.followers, *self.terminals, self.watch):
            each.end()


@contextmanager
def load(lab: Lab, older: Callable[[str], Path], newer: Callable[[str], Path]) -> Iterator[Load]:
    """Begun, and ended however the story ends."""
    made = Load(lab, older, newer)
    try:
        yield made
    finally:
        made.close()
