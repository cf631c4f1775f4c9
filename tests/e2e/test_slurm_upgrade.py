"""Slurm is upgraded under people, 24.11 to 26.05, a daemon at a time: jobs and viewers go on."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from lab.fixtures import lab_name
from lab.laboratory import Lab
from lab.slurm_upgrade import SlurmUpgrade
from tests.e2e.log_lines import Gate, numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]

OLD, NEW = "24.11", "26.05"
_COUNT = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.05; done"

Identity = tuple[str, list[tuple[int, str]]]
"""The first submit time, and each attempt with its start."""


@pytest.fixture
def old() -> Iterator[Lab]:
    own = Lab(lab_name("upgrade"), slurm=OLD, servers=2)
    try:
        own.up()
        yield own
    finally:
        own.down(purge=True)


@dataclass
class Viewers:
    """Who looks at a job all the time, and the states of all jobs that were seen meanwhile."""

    alice: Person
    job: int
    states: dict[str, set[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.logs = self._runs("logs", str(self.job), "--follow", "--prefix", "none")
        self.watch = self._runs("watch", str(self.job), "-o", "json")
        self.terminal = self._runs("attach", str(self.job), "--", "sh", "-c", _COUNT)
        self._over = threading.Event()
        self._list = threading.Thread(target=self._read_lists)
        self._list.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._list.join()
        for each in (self.logs, self.watch, self.terminal):
            each.kill()
            each.communicate()

    def had_everything(self) -> None:
        """Every line, key and event, each once."""
        lines, said = self.logs.communicate(timeout=60)
        assert self.logs.returncode == 0, said
        assert numbers(lines.splitlines(), "u") == list(range(800))
        typed, _ = self.terminal.communicate(timeout=60)
        shown = [int(line) for line in typed.split()]
        assert shown == list(range(len(shown)))
        assert len(shown) > 100
        told, _ = self.watch.communicate(timeout=60)
        events = [json.loads(line) for line in told.splitlines()]
        assert [each["type"] for each in events].count("ended") == 1

    def _runs(self, *words: str) -> subprocess.Popen[str]:
        return self.alice.lab.popen_as("alice", ["lattice", *words], env=self.alice.bearer)

    def _read_lists(self) -> None:
        while not self._over.wait(0.3):
            said = self.alice.tries("status", "-o", "json")
            if said.code != 0:
                self.faults.append(said.err)
                continue
            listed = json.loads(said.out)["allocations"]
            ids = [each["id"] for each in listed]
            if len(set(ids)) != len(ids):
                self.faults.append(f"twice: {ids}")
            for each in listed:
                self.states.setdefault(each["id"], set()).add(each["state"])
            if missing := self.states.keys() - set(ids):
                self.faults.append(f"missing: {missing}")


def identities(alice: Person, jobs: list[str]) -> dict[str, Identity]:
    return {job: _identity(alice.card(job)["allocation"]) for job in jobs}


def _identity(found: dict[str, Any]) -> Identity:
    return found["first_submitted"], [
        (each["number"], each["started"]) for each in found["attempts"]
    ]


@dataclass
class Jobs:
    """One job of each kind, the first of them on two nodes."""

    lab: Lab

    def __post_init__(self) -> None:
        self._gate = Gate(self.lab)
        wrap = f"{script('u', 800, pause_s=0.05)}; {self._gate.wait}"
        self.writer = self._begin("-N2", "-w", "n[1-2]", wrap=wrap)
        self.requeued = self._begin("-w", "n3", "--requeue")
        self.failed = self._begin("-w", "n3", wrap="exit 3")
        self.array = self._begin("-w", "n3", "--array=1-2")
        self.held = self._begin("--hold")
        self.lab.wait_job_state(self.requeued, "RUNNING")
        self.lab.wait_job_state(self.failed, "FAILED")
        self.lab.ctl(["scontrol", "requeue", str(self.requeued)])
        self.lab.start_requeued(self.requeued)
        for each in (self.requeued, self.writer):
            self.lab.wait_job_state(each, "RUNNING")

    def _begin(self, *words: str, wrap: str = "sleep 900") -> int:
        return self.lab.sbatch("alice", *words, wrap=wrap)

    @property
    def names(self) -> list[str]:
        tasks = [f"{self.array}_{task}" for task in (1, 2)]
        return [*map(str, (self.writer, self.requeued, self.failed, self.held)), *tasks]

    def let_the_writer_end(self) -> None:
        self._gate.open()
        self.lab.wait_job_state(self.writer, "COMPLETED", timeout_s=180)


@pytest.mark.spec("ALLOC-1", "ALLOC-7", "ATTACH-1", "LOG-3", "LOG-4", "WATCH-1")
def test_jobs_and_viewers_go_on_while_slurm_is_upgraded(old: Lab) -> None:
    alice = Person(old, "alice").logged_in()
    jobs = Jobs(old)
    before = eventually(
        lambda: identities(alice, jobs.names),
        lambda found: len(found[str(jobs.requeued)][1]) == 2,
    )
    with Viewers(alice, jobs.writer) as viewers:
        eventually(lambda: viewers.states.get(str(jobs.writer)))
        _upgrade(old, lambda: identities(alice, jobs.names), before)
        _runs_on_the_newer(old, alice)
        assert viewers.terminal.poll() is None
        jobs.let_the_writer_end()
        viewers.had_everything()
    assert viewers.faults == []
    assert viewers.states[str(jobs.writer)] <= {"running", "completing", "completed"}
    assert viewers.states[str(jobs.held)] == {"pending"}
    assert viewers.states[str(jobs.failed)] == {"failed"}

    stored = alice.tries("logs", str(jobs.writer), "--prefix", "none")
    assert numbers(stored.out.splitlines(), "u") == list(range(800))
    assert identities(alice, jobs.names) == before


def _upgrade(old: Lab, seen: Callable[[], Any], before: Any) -> None:
    upgrade = SlurmUpgrade(old, NEW)
    upgrade.accounting()
    assert seen() == before
    upgrade.controller()
    # Its list may be some seconds old.
    eventually(seen, lambda found: found == before)
    for node in old.slurm.nodes:
        upgrade.node(node)
        assert seen() == before


def _runs_on_the_newer(lab: Lab, alice: Person) -> None:
    job = lab.sbatch("alice", "-w", "n3", wrap="echo upgraded")
    lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: alice.tries("logs", str(job)).out, lambda out: out == "upgraded\n")
    assert alice.card(job)["allocation"]["sluid"], "what only the newer version tells"
    versions = {each["slurm_version"] for each in alice.asks("nodes")["nodes"]}
    assert {each.rpartition(".")[0] for each in versions} == {NEW}
