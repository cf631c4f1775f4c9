"""A job's figures and alerts as they come."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.e2e.topped import debugged
from tests.eventually import PATIENCE_S, eventually

pytestmark = pytest.mark.lab


class Watching:
    """`lattice watch` as somebody runs it in a pipe."""

    def __init__(self, person: Person, job: int, *words: str) -> None:
        self.process = person.lab.popen_as(
            person.name,
            ["lattice", "watch", str(job), "-o", "json", *words],
            env=person.bearer,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.told: list[dict[str, Any]] = []

    def until(
        self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The first record that is as wanted."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            assert line, self.told[-3:]
            record = json.loads(line)
            self.told.append(record)
            if wanted(record):
                return record
        raise AssertionError(self.told[-3:])

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def _figure(record: dict[str, Any], node: str, metric: str) -> float:
    for each in record.get("nodes", ()):
        if each["node"] == node:
            for figure in each["figures"]:
                if figure["metric"] == metric and figure["value"] is not None:
                    return float(figure["value"])
    return -1.0


@pytest.mark.story
@pytest.mark.spec("WATCH-1")
def test_two_nodes_until_the_end(lab: Lab, alice: Person) -> None:
    work = "srun -N1 -n1 -w n1 --overlap timeout 12 sh -c 'while :; do :; done'; exit 3"
    with debugged(lab, alice, "-w", "n[1-2]", wrap=work) as job:
        watching = Watching(alice, job, "--exit-status")
        try:
            watching.until(lambda told: told["type"] == "measured" and told["measured"] == 2)
            watching.until(lambda told: _figure(told, "n1", "cpu_utilization") > 15)
            ended = watching.until(lambda told: told["type"] == "ended")
            assert ended["state"] == "failed"
            assert watching.process.wait(60) == 100
        finally:
            watching.end()


def past_alerts(person: Person, job: int) -> list[dict[str, Any]]:
    """Alerts on the job's timeline, over or not."""
    events = person.asks("timeline", str(job))["events"]
    return [each for each in events if each["kind"] == "alert"]


@pytest.mark.story
@pytest.mark.spec("WATCH-1", "WATCH-2")
def test_an_oom_kill_is_told_once(lab: Lab, alice: Person) -> None:
    eater = "/usr/bin/python3 -c 'x = bytearray(400 << 20)'"
    with debugged(lab, alice, "-w", "n1", "--mem=150M", wrap=f"sleep 9; {eater}; sleep 300") as job:
        watching = Watching(alice, job, "--alerts-only")
        try:
            alert = watching.until(lambda told: told.get("rule") == "oom_kill")
            assert alert["node"] == "n1"
            assert alert["phase"] == "firing"
            assert alert["words"]
            assert alert["remedy"]
        finally:
            watching.end()
        (standing,) = past_alerts(alice, job)
        assert (standing["node"], standing["name"], standing["lasts"]) == ("n1", "oom_kill", True)
        assert [each["type"] for each in watching.told].count("measured") == 0
    lab.wait_job_state(job, "CANCELLED")
    over = eventually(lambda: past_alerts(alice, job), lambda found: not found[0]["lasts"])
    assert [each["text"] for each in over] == [standing["text"]]
    assert over[0]["ended"]


def test_until_it_runs(lab: Lab, alice: Person) -> None:
    job = lab.sbatch("alice", "-w", "n1", "--begin=now+6", wrap="sleep 60")
    try:
        eventually(lambda: alice.tries("status", str(job)).code, lambda code: code == 0)
        said = alice.lattice(
            "watch", str(job), "--until", "running", env=alice.bearer, timeout_s=60
        )
        assert said.code == 0, said
        lab.wait_job_state(job, "RUNNING")
    finally:
        lab.run_as("alice", ["scancel", str(job)])
