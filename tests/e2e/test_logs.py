"""What a job writes, live and afterwards, on real nodes; and what becomes of it under faults."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from lattice.base.failpoints import VARIABLE
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person, eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

FAILPOINTS = (
    "spool.mark.written",
    "spool.tail.written",
    "spool.frame.written",
    "spool.frame.indexed",
    "spool.tail.cleared",
    "spool.open.cleared",
    "spool.chunk.sealed",
    "spool.chunk.synced",
    "spool.chunk.renamed",
    "spool.stored.written",
    "spool.chunk.dropped",
    "ship.part.sent",
    "ship.acknowledged",
)


def lines_of(person: Person, job: int, *words: str) -> list[str]:
    said = person.tries("logs", str(job), *words)
    assert said.code == 0, said
    return said.out.splitlines()


@pytest.fixture(autouse=True)
def agents_up(quiet_lab: Lab) -> Iterator[None]:
    yield
    for name in ("n1", "n2", "n3"):
        agent = quiet_lab.node(name).agent
        if agent.environment:
            agent.environment.clear()
            agent.kill()
        if not agent.process.alive:
            agent.start()


@pytest.mark.spec("LOG-4", "LOG-5")
def test_a_job_followed_from_its_first_to_its_last_line(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap=script("a", 200, pause_s=0.02))
    quiet_lab.wait_job_state(job, "RUNNING")
    followed = alice.tries("logs", str(job), "--follow")
    assert followed.code == 0, followed
    assert numbers(followed.out.splitlines(), "a") == list(range(200))
    assert "end of job" in followed.err
    assert numbers(lines_of(alice, job), "a") == list(range(200)), "and again afterwards"


@pytest.mark.spec("LOG-3")
def test_a_job_that_is_over_at_once(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="echo so soon")
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: lines_of(alice, job), lambda seen: seen == ["so soon"])


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("name", FAILPOINTS)
def test_an_agent_killed_at(quiet_lab: Lab, alice: Person, name: str) -> None:
    """At every durable step: nothing is lost, doubled or out of order."""
    agent = quiet_lab.node("n1").agent
    agent.kill()
    agent.environment[VARIABLE] = name
    agent.start()
    job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap=script("k", 3000, size=200))
    deadline = time.monotonic() + 60
    while agent.process.alive and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not agent.process.alive, f"{name} was never reached"
    agent.environment.clear()
    agent.start()
    quiet_lab.wait_job_state(job, "COMPLETED")
    complete = eventually(
        lambda: numbers(lines_of(alice, job), "k"), lambda seen: len(seen) >= 3000, 60
    )
    assert complete == list(range(3000))


@pytest.mark.spec("AUTH-7", "AUTH-12")
def test_anothers_logs_are_not_there(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="echo private")
    quiet_lab.wait_job_state(job, "COMPLETED")
    theirs = bob.tries("logs", str(job))
    nobodys = bob.tries("logs", "99999")
    assert theirs.code == nobodys.code == 102
    assert theirs.err.replace(str(job), "N") == nobodys.err.replace("99999", "N")
    assert "private" not in theirs.out + theirs.err


def test_json_lines(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="echo one; echo two")
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: lines_of(alice, job), lambda seen: len(seen) == 2)
    records = [json.loads(each) for each in lines_of(alice, job, "-o", "json")]
    lines = [each for each in records if each["type"] == "line"]
    assert [(each["seq"], each["text"]) for each in lines] == [(0, "one"), (1, "two")]
    assert {(each["node"], each["stream"], each["source"]) for each in lines} <= {
        (node, "stdout", "batch") for node in ("n1", "n2", "n3")
    }
