"""The plain text of a sensitive job's output is nowhere but in the job's own output file.

The same search finds an ordinary job's output in the spool, in the store, and in the memory of its
agent while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lattice.foundation.data_keys import ENDED_S
from tests.e2e.marked import MarkedJob, files_with, memories_with
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def alice(sensitive_lab: Lab) -> Iterator[Person]:
    person = Person(sensitive_lab, "alice").logged_in("sensitive:claim")
    sensitive_lab.jobs.cancel_all()
    made = person.tries("admin", "claim", "n1")
    assert made.code == 0, made.err
    yield person
    sensitive_lab.jobs.cancel_all()
    eventually(lambda: person.tries("admin", "release", "n1").code == 0)


def _files_with(lab: Lab, job: MarkedJob) -> list[str]:
    return files_with(lab, [job.marker.encode()], except_for=[job.file])


def _memories_with(lab: Lab, job: MarkedJob, nodes: tuple[str, ...]) -> list[str]:
    return memories_with(lab, job.marker.encode(), nodes)


@pytest.mark.spec("LOG-8", "AUTH-7")
@pytest.mark.threat("sensitive", "sensitive-memory")
def test_the_plain_text_of_a_sensitive_job_is_in_its_own_file_alone(
    sensitive_lab: Lab, alice: Person
) -> None:
    lab = sensitive_lab
    (claim,) = alice.asks("admin", "claims")["claims"]
    first = lab.node("n1").agent.process.pid
    job = MarkedJob(lab, f"--reservation={claim['reservation']}", "--partition=sensitive")
    ordinary = MarkedJob(lab, "--nodelist=n2")
    for each in (job, ordinary):
        lab.wait_job_state(each.id, "RUNNING")
        eventually(
            lambda each=each: alice.tries("logs", str(each.id)).out.count(each.marker) == 200
        )
    agent = lab.node("n1").agent.process.pid
    assert agent == first, "it executed itself again, as the same process"
    environment = Path(f"/proc/{agent}/environ").read_bytes()
    assert b"PYTHONMALLOC=malloc" in environment
    usual = Path(f"/proc/{lab.node('n2').agent.process.pid}/environ").read_bytes()
    assert b"PYTHONMALLOC" not in usual
    assert _files_with(lab, ordinary), "the control: it is found on the node"
    assert _memories_with(lab, ordinary, ("n2",)), "the control: and in memory"
    assert _files_with(lab, job) == []

    # It is read in each way: live, searched, and from the store.
    follower = lab.popen_as("alice", ["lattice", "logs", "-f", str(job.id)], env=alice.bearer)
    searched = alice.tries("logs", str(job.id), "--grep", "line 7 of")
    assert searched.out.count(job.marker) == 1
    for each in (job, ordinary):
        lab.run_as("alice", ["touch", f"go-on-{each.id}"])
        lab.wait_job_state(each.id, "COMPLETED")
    assert follower.communicate(timeout=60)[0].count(job.marker) == 400
    eventually(lambda: alice.tries("logs", str(job.id)).out.count(job.marker) == 400)
    waiting = lab.node("n1").agent.folder / "state" / "logs"
    eventually(
        lambda: not [each for each in waiting.iterdir() if each.name.startswith(f"{job.id}-")]
    )
    eventually(lambda: _files_with(lab, ordinary), patience_s=60)

    own = lab.run_as("alice", ["cat", job.file])
    assert own.stdout.count(job.marker) == 400
    assert _files_with(lab, job) == []
    # Servers forget the key, and what referred to itself is collected.
    eventually(lambda: _memories_with(lab, job, ("n1", "n2", "n3")) == [], patience_s=ENDED_S + 60)
