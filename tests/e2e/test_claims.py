"""Nodes that one person claimed run nobody else's jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def alice(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "alice").logged_in("sensitive:claim")


@pytest.fixture(scope="module")
def bob(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "bob").logged_in("sensitive:claim")


@pytest.fixture(autouse=True)
def unclaimed(lab: Lab, alice: Person, bob: Person) -> Iterator[None]:
    lab.jobs.cancel_all()
    yield
    lab.jobs.cancel_all()
    for person in (alice, bob):
        for claim in person.asks("admin", "claims")["claims"]:
            person.tries("admin", "release", claim["id"])


def _reservations(lab: Lab) -> str:
    return lab.ctl(["scontrol", "-o", "show", "reservation"]).stdout


@pytest.mark.story
@pytest.mark.spec("AUDIT-1", "OPS-4")
@pytest.mark.threat("sensitive-claim")
def test_claimed_nodes_run_nobody_elses_jobs(lab: Lab, alice: Person, bob: Person) -> None:
    made = alice.tries("admin", "claim", "n1", "n2", "--reason", "trial 7")
    assert made.code == 0, made.err
    (claim,) = alice.asks("admin", "claims")["claims"]
    shown = _reservations(lab)
    assert f"ReservationName={claim['reservation']} " in shown
    assert "Nodes=n[1-2]" in shown
    assert "Users=alice" in shown

    refused = bob.tries("admin", "claim", "n[2-3]")
    assert (refused.code, f"alice holds n2 (claim {claim['id']})" in refused.err) == (81, True)
    assert _reservations(lab).count("ReservationName=") == 1

    waits = lab.sbatch("bob", "-w", "n1", wrap="sleep 60")
    eventually(lambda: lab.jobs.states(waits), lambda states: "PENDING" in states)
    assert bob.asks("nodes", "n1")["node"]["state"] == "claimed"
    assert bob.asks("nodes", "n1")["node"]["claimed_by"] == ""
    assert alice.asks("nodes", "n1")["node"]["claimed_by"] == "alice"

    released = alice.tries("admin", "release", "n[1-2]")
    assert released.code == 0, released.err
    assert "ReservationName=" not in _reservations(lab)
    lab.wait_job_state(waits, "RUNNING")
