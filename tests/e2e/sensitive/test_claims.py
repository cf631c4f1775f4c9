"""Nodes that one person claimed run nobody else's jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from lab.sensitive import VCLUSTER
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def alice(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "alice").logged_in("sensitive:claim")


@pytest.fixture(scope="module")
def erin(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "erin").logged_in("sensitive:claim")


@pytest.fixture(autouse=True)
def unclaimed(lab: Lab, alice: Person, erin: Person) -> Iterator[None]:
    lab.jobs.cancel_all()
    yield
    lab.jobs.cancel_all()
    for person in (alice, erin):
        for claim in person.asks("admin", "claims")["claims"]:
            person.tries("admin", "release", claim["id"])


def _reservations(lab: Lab) -> str:
    return lab.ctl(["scontrol", "-o", "show", "reservation"]).stdout


def _nodes(person: Person, job: str) -> str:
    nodes: str = person.asks("status", job)["allocation"]["nodes"]
    return nodes


@pytest.mark.story
@pytest.mark.spec("AUDIT-1", "OPS-4")
@pytest.mark.threat("sensitive-claim")
def test_claimed_nodes_run_nobody_elses_jobs(lab: Lab, alice: Person, erin: Person) -> None:
    made = alice.tries("admin", "claim", "n1", "n2", "--reason", "trial 7")
    assert made.code == 0, made.err
    (claim,) = alice.asks("admin", "claims")["claims"]
    shown = _reservations(lab)
    assert f"ReservationName={claim['reservation']} " in shown
    assert "Nodes=n[1-2]" in shown
    assert "Users=alice" in shown

    refused = erin.tries("admin", "claim", "n[2-3]")
    assert (refused.code, f"alice holds n2 (claim {claim['id']})" in refused.err) == (81, True)
    assert _reservations(lab).count("ReservationName=") == 1

    waits = lab.sbatch("erin", "-w", "n1", wrap="sleep 60")
    eventually(lambda: lab.jobs.states(waits), lambda states: "PENDING" in states)
    assert erin.asks("nodes", "n1")["node"]["state"] == "claimed"
    assert erin.asks("nodes", "n1")["node"]["claimed_by"] == ""
    assert alice.asks("nodes", "n1")["node"]["claimed_by"] == "alice"

    released = alice.tries("admin", "release", "n[1-2]")
    assert released.code == 0, released.err
    assert "ReservationName=" not in _reservations(lab)
    lab.wait_job_state(waits, "RUNNING")


@pytest.mark.story
@pytest.mark.spec("AUDIT-1")
@pytest.mark.threat("sensitive-elsewhere")
def test_sensitive_work_runs_on_claimed_nodes_only(
    sensitive_lab: Lab, alice: Person, erin: Person
) -> None:
    words = ("submit", "--vcluster", VCLUSTER, "--", "sleep", "300")
    refused = alice.tries(*words)
    assert (refused.code, "SensitiveIsolation" in refused.err) == (77, True), refused
    assert alice.tries("admin", "claim", "n1").code == 0
    job = alice.tries(*words[:3], "--sbatch=-c1", *words[3:]).out.split()[-1]
    sensitive_lab.wait_job_state(int(job), "RUNNING")
    eventually(lambda: _nodes(alice, job), lambda nodes: nodes == "n1")
    assert alice.tries("logs", job).code == 0
    busy = alice.tries("admin", "release", "n1")
    assert (busy.code, f"run on n1: job {job}" in busy.err) == (81, True), busy

    # Past Lattice she reaches the partition, and nobody serves what runs there.
    other = sensitive_lab.sbatch("erin", "-p", VCLUSTER, "-w", "n3", "-c1", wrap="sleep 300")
    sensitive_lab.wait_job_state(other, "RUNNING")
    eventually(lambda: _nodes(erin, str(other)), lambda nodes: nodes == "n3")
    unserved = erin.tries("logs", str(other))
    assert unserved.code == 77, unserved
    assert "it runs on n3 that erin had not claimed" in unserved.err
    eventually(
        lambda: erin.asks("audit", "query", "--allocation", str(other))["rows"],
        lambda rows: any("not claimed), refused" in each["sentence"] for each in rows),
    )

    assert alice.tries("cancel", job).code == 0
    eventually(lambda: alice.tries("admin", "release", "n1").code, lambda code: code == 0)
    assert alice.tries("logs", job).code == 0, "what ran in the claim stays readable"
