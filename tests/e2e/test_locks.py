"""Somebody is shut out now, on every replica, and the jobs run on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from tests.e2e.at_terminal import PROMPT, at
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked_at, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_TICKS = "while true; do echo tick; sleep 0.2; done"


@pytest.fixture(scope="module")
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Person:
    return Person(lab, "alice").logged_in()


@pytest.fixture(scope="module")
def job(lab: Lab) -> Iterator[int]:
    lab.jobs.cancel_all()
    number = lab.sbatch("alice", "-w", "n1", "-c1", wrap=_TICKS)
    lab.wait_job_state(number, "RUNNING")
    yield number
    lab.jobs.cancel_all()


@pytest.fixture(autouse=True)
def unlocked(lab: Lab, olga: Person) -> Iterator[None]:
    yield
    put_right(lab, olga)
    for lock in olga.asks("admin", "locks")["locks"]:
        olga.tries("admin", "unlock", lock["kind"], *filter(None, [lock["target"]]))


def _answers(lab: Lab, person: Person) -> list[int]:
    """The exit code of `whoami` at each replica."""
    return [
        person.lattice("whoami", env={**person.bearer, "LATTICE_API_URL": server.url}).code
        for server in lab.servers
    ]


def _lock_a_user(lab: Lab, olga: Person, alice: Person, job: int) -> float:
    """The seconds from the lock to the end of the last thing she had open."""
    with at(alice, "attach", str(job)) as shown, at(alice, "logs", "-f", str(job)) as followed:
        shown.until(PROMPT)
        followed.until("tick")
        begun = time.monotonic()
        locked = olga.tries("admin", "lock", "user", "alice", "--reason", "stolen laptop")
        assert locked.code == 0, locked.err
        for each in (shown, followed):
            each.until("is locked: stolen laptop")
            assert each.wait() == 77
        ended_s = time.monotonic() - begun
        assert shown.modes_now == shown.modes
    eventually(lambda: _answers(lab, alice), lambda codes: codes == [77, 77])
    return ended_s


@pytest.mark.story
@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("stolen-token")
def test_a_locked_user_loses_what_is_open_and_is_refused_by_every_replica(
    lab: Lab, olga: Person, alice: Person, job: int
) -> None:
    _lock_a_user(lab, olga, alice, job)
    assert "RUNNING" in lab.jobs.states(job)
    assert olga.tries("admin", "unlock", "user", "alice").code == 0
    eventually(lambda: _answers(lab, alice), lambda codes: codes == [0, 0])


@pytest.mark.timing
@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("stolen-token")
def test_a_lock_holds_within_five_seconds(lab: Lab, olga: Person, alice: Person, job: int) -> None:
    assert _lock_a_user(lab, olga, alice, job) <= 5


@pytest.mark.spec("AUTH-13")
def test_a_locked_node_has_no_terminals_and_its_jobs_run_on(
    lab: Lab, olga: Person, alice: Person, job: int
) -> None:
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        assert olga.tries("admin", "lock", "node", "n1", "--reason", "forensics").code == 0
        shown.until("Node n1 is locked: forensics")
        assert shown.wait() == 77
    refused = alice.tries("attach", str(job))
    assert refused.code == 77
    assert "Node n1 is locked: forensics" in refused.err
    assert "RUNNING" in lab.jobs.states(job)


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("locked-cut-off")
def test_a_replica_cut_off_from_etcd_refuses_acts_and_still_reads(
    lab: Lab, olga: Person, alice: Person, job: int
) -> None:
    first = lab.servers[0]
    alone = {**alice.bearer, "LATTICE_API_URL": first.url}
    first.cut_off_state()
    refused = eventually(
        lambda: alice.lattice("submit", "--", "true", env=alone), lambda said: said.code != 0
    )
    assert refused.code == 75
    assert "who is locked" in refused.err
    assert alice.lattice("status", str(job), env=alone).code == 0
    first.heal_state()
    eventually(lambda: linked_at(olga, first))
    eventually(
        lambda: alice.lattice("submit", "--", "true", env=alone), lambda said: said.code == 0
    )
