"""A cluster that shows people their own jobs alone, and the right in Slurm that servers need."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from lab.users import SERVER_USER
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab


@pytest.mark.story
@pytest.mark.spec("ALLOC-1", "AUTH-7", "AUTH-12")
def test_an_operator_right_is_enough_for_a_server(
    quiet_lab: Lab, alice: Person, bob: Person, carol: Person
) -> None:
    assert "PrivateData = jobs" in " ".join(
        quiet_lab.ctl(["scontrol", "show", "config"]).stdout.split()
    )
    hers = quiet_lab.sbatch("alice", wrap="echo hers; sleep 300")
    ended = quiet_lab.sbatch("alice", wrap="exit 3")
    his = quiet_lab.sbatch("bob", "-A", "genomics", wrap="sleep 300")
    for job, state in ((hers, "RUNNING"), (his, "RUNNING"), (ended, "FAILED")):
        quiet_lab.wait_job_state(job, state)
    queue = quiet_lab.run_as("alice", ["squeue", "-h", "-o", "%A"], check=True).stdout.split()
    assert (str(hers) in queue, str(his) in queue) == (True, False)

    own = eventually(lambda: alice.sees("status"), lambda seen: {str(hers), str(ended)} <= seen)
    assert str(his) not in own
    assert str(his) in eventually(lambda: bob.sees("status"))
    assert alice.tries("status", str(his)).code == 102
    eventually(lambda: alice.sees("history"), lambda seen: str(ended) in seen)
    eventually(lambda: alice.tries("logs", str(hers)).out, lambda out: out == "hers\n")
    # A tenant admin has the tenant's, by Lattice's own rules.
    eventually(lambda: carol.sees("status", "--all"), lambda seen: str(his) in seen)
    assert str(hers) not in carol.sees("status", "--all")


@pytest.fixture
def no_right(quiet_lab: Lab) -> Iterator[None]:
    """The servers' account sees what anybody sees in Slurm."""
    level = ["sacctmgr", "-i", "modify", "user", SERVER_USER, "set"]
    quiet_lab.ctl([*level, "adminlevel=none"])
    yield
    quiet_lab.ctl([*level, "adminlevel=operator"])


@pytest.mark.long
@pytest.mark.spec("ALLOC-7")
@pytest.mark.usefixtures("no_right")
def test_a_missing_right_is_told_with_the_command_that_gives_it(
    quiet_lab: Lab, alice: Person
) -> None:
    """The servers look once a minute."""
    told = eventually(lambda: alice.tries("status").err, lambda err: "PrivateData" in err)
    assert "Allocations are missing: Slurm hides jobs and past jobs of others" in told
    assert f"sacctmgr modify user {SERVER_USER} set adminlevel=operator" in told
    ca = str(quiet_lab.layout.certificates / "ca.crt")
    health = json.loads(
        quiet_lab.ctl(["curl", "-sS", "--cacert", ca, quiet_lab.servers[0].url + "/healthz"]).stdout
    )
    assert health["status"] == "degraded"
    assert "PrivateData" in health["note"]
