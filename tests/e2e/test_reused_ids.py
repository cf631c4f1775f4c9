"""A cluster gives the same job id out twice; each owner keeps her own past."""

from __future__ import annotations

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab


@pytest.mark.spec("ALLOC-1", "AUTH-12")
@pytest.mark.long
def test_a_job_id_used_twice(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    job = quiet_lab.sbatch("alice", "-J", "elder", wrap="true")
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: alice.sees("history"), lambda seen: str(job) in seen)
    quiet_lab.slurm.reset_controller(first_job_id=job)
    again = quiet_lab.sbatch("bob", "-A", "genomics", "-J", "younger", wrap="sleep 60")
    assert again == job
    quiet_lab.wait_job_state(again, "RUNNING")

    # Each means their own by the bare id, and can't reach the other's by any name.
    mine = eventually(lambda: bob.card(job)["allocation"], lambda seen: seen["state"] == "running")
    assert mine["name"] == "younger"
    hers = alice.card(job)["allocation"]
    assert (hers["name"], hers["state"]) == ("elder", "completed")
    assert alice.card(job)["earlier"] == []
    for person, other in ((alice, mine), (bob, hers)):
        named = f"{job}@{other['first_submitted']}"
        assert person.tries("status", named).code == 102

    # The same owner uses the id a third time: the newest is meant, the older can be named.
    quiet_lab.jobs.cancel_all()
    quiet_lab.slurm.reset_controller(first_job_id=job)
    third = quiet_lab.sbatch("alice", "-J", "third", wrap="sleep 60")
    assert third == job
    card = eventually(
        lambda: alice.card(job),
        lambda seen: seen["allocation"]["name"] == "third" and seen["earlier"] != [],
    )
    (older,) = card["earlier"]
    assert alice.card(older)["allocation"]["name"] == "elder"
    assert bob.card(job)["allocation"]["name"] == "younger"
