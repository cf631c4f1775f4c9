"""Parts of Slurm fall silent: what is known stays readable with its age, nothing is invented."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def controller_away(quiet_lab: Lab) -> Iterator[tuple[int, int]]:
    """A job of alice's and one of bob's are known; then slurmctld stops."""
    hers = quiet_lab.sbatch("alice", wrap="sleep 300")
    his = quiet_lab.sbatch("bob", "-A", "genomics", wrap="sleep 300")
    quiet_lab.wait_job_state(hers, "RUNNING")
    quiet_lab.wait_job_state(his, "RUNNING")
    alice = Person(quiet_lab, "alice").logged_in()
    eventually(lambda: alice.card(hers)["allocation"], lambda seen: seen["state"] == "running")
    quiet_lab.slurm.ctld.stop()
    try:
        yield hers, his
    finally:
        quiet_lab.slurm.ctld.up()


@pytest.mark.story
@pytest.mark.spec("ALLOC-7", "AUTH-12")
def test_slurmctld_stopped(quiet_lab: Lab, controller_away: tuple[int, int], alice: Person) -> None:
    hers, his = controller_away
    answer = eventually(
        lambda: alice.asks("status"),
        lambda seen: not _source(seen, "slurmctld")["ok"],
    )
    assert str(hers) in {each["id"] for each in answer["allocations"]}
    source = _source(answer, "slurmctld")
    assert source["age_s"] > 5
    assert source["as_of"] is not None
    told = alice.tries("status")
    assert told.code == 0
    assert "slurmctld" in told.err
    card = alice.asks("status", str(hers))
    assert card["allocation"]["state"] == "running"
    assert not _source(card, "slurmctld")["ok"]

    unknown = alice.tries("status", "99999999")
    others = alice.tries("status", str(his))
    assert unknown.code == others.code == 75
    assert unknown.err.replace("99999999", "ID") == others.err.replace(str(his), "ID")
    assert alice.asks("nodes")["nodes"] != []

    quiet_lab.slurm.ctld.up()
    eventually(lambda: alice.asks("status"), lambda seen: _source(seen, "slurmctld")["ok"])
    eventually(lambda: alice.tries("status", str(his)).code, lambda code: code == 102)


@pytest.mark.spec("ALLOC-7")
def test_slurmdbd_stopped(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    eventually(lambda: alice.sees("status"), lambda seen: str(job) in seen)
    quiet_lab.slurm.dbd.stop()
    try:
        said = eventually(lambda: alice.tries("history"), lambda said: said.code != 0)
        assert said.code == 75
        assert "slurmdbd" in said.err
        answer = eventually(
            lambda: alice.asks("status"),
            lambda seen: (
                not _source(seen, "slurmdbd")["ok"]
                and str(job) in {each["id"] for each in seen["allocations"]}
            ),
        )
        assert _source(answer, "slurmctld")["ok"]
        assert "slurmdbd" in alice.tries("status").err
        assert alice.card(job)["allocation"]["state"] == "running"
        fresh = quiet_lab.sbatch("alice", wrap="sleep 300")
        eventually(lambda: alice.sees("status"), lambda seen: str(fresh) in seen)
    finally:
        quiet_lab.slurm.dbd.up()
    eventually(lambda: alice.tries("history").code, lambda code: code == 0)


def _source(answer: dict, name: str) -> dict:
    return next(each for each in answer["sources"] if each["name"] == name)
