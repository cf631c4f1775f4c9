"""A job owner follows her own work from the queue to history, and sees nothing of anyone else's."""

from __future__ import annotations

import re

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab


def _state(person: Person, job: int | str) -> str:
    return str(person.card(job)["allocation"]["state"])


@pytest.mark.story
@pytest.mark.spec("ALLOC-1", "ALLOC-2", "ALLOC-6")
def test_a_two_node_gpu_job_from_pending_to_history(quiet_lab: Lab, alice: Person) -> None:
    blocker = quiet_lab.sbatch("alice", "-N3", "--gpus-per-node=4", wrap="sleep 300")
    quiet_lab.wait_job_state(blocker, "RUNNING")
    until_told = "until [ -e ~/enough ]; do sleep 0.5; done; rm ~/enough"
    job = quiet_lab.sbatch(
        "alice", "-N2", "--gpus-per-node=2", "-J", "train", "-t", "30", wrap=until_told
    )

    waiting = eventually(
        lambda: alice.card(job)["allocation"],
        lambda seen: (
            seen["state"] == "pending" and (seen["reason"] or {}).get("code") not in {None, "None"}
        ),
    )
    assert waiting["reason"]["code"] in {"Resources", "Priority"}
    assert len(waiting["reason"]["words"].split()) >= 3
    assert waiting["time_limit_s"] == 1800
    assert waiting["started"] is None
    shown = alice.tries("status").out
    assert waiting["reason"]["words"] in shown
    assert f"({waiting['reason']['code']})" in shown

    quiet_lab.jobs.cancel(blocker)
    running = eventually(
        lambda: alice.card(job)["allocation"], lambda seen: seen["state"] == "running"
    )
    assert running["node_count"] == 2
    assert running["gpus"] == 4
    assert running["vcluster"] == "batch"
    assert running["tenant"] == "physics"
    assert running["ended"] is None

    quiet_lab.run_as("alice", ["touch", "/home/alice/enough"])
    done = eventually(
        lambda: alice.card(job)["allocation"], lambda seen: seen["state"] == "completed"
    )
    assert done["exit_code"] == {"code": 0, "signal": 0}
    past = eventually(lambda: alice.asks("history"), lambda seen: _named(seen, str(job)) != [])
    (row,) = _named(past, str(job))
    assert (row["state"], row["name"], row["node_count"]) == ("completed", "train", 2)
    assert row["ended"] is not None


def _named(answer: dict, job: str) -> list[dict]:
    return [each for each in answer["allocations"] if each["id"] == job]


@pytest.mark.spec("ALLOC-1")
def test_an_array_is_one_thing_with_many_tasks(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", "--array=1-5%2", "-J", "sweep", wrap="sleep 60")
    eventually(lambda: alice.sees("status"), {f"{job}_1", f"{job}_2"}.issubset)
    card = alice.card(job)
    members = [card["allocation"], *card["siblings"]]
    assert {each["array"]["job_id"] for each in members} == {job}
    assert any(each["state"] == "pending" and each["array"]["waiting"] for each in members)
    task = alice.card(f"{job}_2")["allocation"]
    assert (task["id"], task["state"]) == (f"{job}_2", "running")
    # Inside the task Slurm says the raw id; that name means the same task.
    assert alice.card(task["job_id"])["allocation"]["id"] == f"{job}_2"


@pytest.mark.spec("ALLOC-1")
def test_a_heterogeneous_job_is_named_by_its_components(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", "-N1", "-n1", ":", "-N1", "-n1", wrap="sleep 60")
    eventually(lambda: alice.sees("status"), {f"{job}+0", f"{job}+1"}.issubset)
    assert alice.card(f"{job}+1")["allocation"]["heterogeneous"] == {"job_id": job, "offset": 1}


@pytest.mark.spec("ALLOC-1")
def test_a_requeued_job_keeps_its_identity_and_counts_its_attempts(
    quiet_lab: Lab, alice: Person
) -> None:
    job = quiet_lab.sbatch("alice", "--requeue", "-J", "again", wrap="sleep 60")
    quiet_lab.wait_job_state(job, "RUNNING")
    first = eventually(
        lambda: alice.card(job)["allocation"], lambda seen: seen["state"] == "running"
    )
    quiet_lab.ctl(["scontrol", "requeue", str(job)])
    quiet_lab.wait_job_state(job, {"PENDING"})
    quiet_lab.start_requeued(job)
    second = eventually(
        lambda: alice.card(job)["allocation"],
        lambda seen: seen["state"] == "running" and len(seen["attempts"]) == 2,
    )
    assert second["first_submitted"] == first["first_submitted"]
    assert [each["number"] for each in second["attempts"]] == [1, 2]
    before, now = second["attempts"]
    assert before["state"] == "requeued"
    assert before["ended"] is not None
    assert now["started"] > before["started"]
    shown = alice.tries("status", str(job)).out
    assert re.search(r"^\s+1\s.*requeued", shown, re.MULTILINE), shown
    assert re.search(r"^\s+2\s.*running", shown, re.MULTILINE), shown
    (row,) = eventually(
        lambda: _named(alice.asks("history"), str(job)),
        lambda rows: len(rows) == 1 and len(rows[0]["attempts"]) == 2,
    )
    assert row["first_submitted"] == first["first_submitted"]


@pytest.mark.story
@pytest.mark.spec("AUTH-7", "AUTH-12")
def test_bob_sees_none_of_it(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    running = quiet_lab.sbatch("alice", wrap="sleep 120")
    done = quiet_lab.sbatch("alice", wrap="true")
    array = quiet_lab.sbatch("alice", "--array=1-2", wrap="sleep 120")
    quiet_lab.wait_job_state(done, "COMPLETED")
    mine = quiet_lab.sbatch("bob", "-A", "genomics", wrap="sleep 120")
    eventually(lambda: alice.sees("history"), lambda seen: str(done) in seen)
    eventually(lambda: bob.sees("status"), lambda seen: str(mine) in seen)

    hers = {str(running), str(done), f"{array}_1", f"{array}_2"}
    for words in (
        ("status",),
        ("status", "--all"),
        ("status", "--user", "alice"),
        ("history",),
        ("history", "--all"),
        ("history", "--user", "alice", "--since", "7d"),
    ):
        assert hers.isdisjoint(bob.sees(*words)), words
    told = {_as_if(bob.tries("status", name), name) for name in (*hers, str(array), "99999999")}
    assert len(told) == 1
    assert next(iter(told))[0] == 102
    for node in ("n1", "n2", "n3"):
        assert set(bob.asks("nodes", node)["allocations"]) <= {str(mine)}


def _as_if(said, name: str) -> tuple[int, str, str]:
    return said.code, said.out, said.err.replace(name, "ID")


@pytest.mark.spec("AUTH-4", "AUTH-12")
def test_bob_gains_nothing_by_asking_for_roles(quiet_lab: Lab, bob: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="sleep 120")
    quiet_lab.wait_job_state(job, "RUNNING")
    greedy = Person(quiet_lab, "bob").logged_in("admin", "system:admin", "tenant:admin", "operator")
    assert greedy.asks("whoami")["role"]["value"] == "User"
    assert str(job) not in greedy.sees("status", "--all")
    assert greedy.tries("status", str(job)).code == 102


@pytest.mark.story
@pytest.mark.spec("AUTH-4", "AUTH-7")
def test_carol_sees_exactly_hers(quiet_lab: Lab, carol: Person) -> None:
    before = carol.sees("status", "--all")
    research = quiet_lab.sbatch("alice", "-A", "research", wrap="sleep 120")
    theory = quiet_lab.sbatch("dave", "-A", "theory", wrap="sleep 120")
    genomics = quiet_lab.sbatch("bob", "-A", "genomics", wrap="sleep 120")
    own = quiet_lab.sbatch("carol", "-A", "genomics", wrap="sleep 120")
    visible = {str(theory), str(genomics), str(own)}
    eventually(lambda: carol.sees("status", "--all"), visible.issubset)
    assert str(research) not in carol.sees("status", "--all")
    assert carol.tries("status", str(research)).code == 102
    assert carol.sees("status") - before == {str(own)}
    assert carol.sees("status", "--user", "dave") - before == {str(theory)}
    # Without the scope she is a coordinator still, and nothing more.
    plain = Person(quiet_lab, "carol").logged_in()
    assert str(theory) in plain.sees("status", "--all")
    assert str(genomics) not in plain.sees("status", "--all")
    who = carol.asks("whoami")
    assert who["role"]["value"] == "TenantAdmin"
    assert who["tenant"] == {"value": "biology", "source": "claim tenant"}
    assert who["coordinates"] == ["theory"]


@pytest.mark.spec("AUTH-4")
def test_an_administrator_sees_all_and_a_service_only_what_it_is_mapped_to(quiet_lab: Lab) -> None:
    job = quiet_lab.sbatch("alice", wrap="sleep 120")
    token = quiet_lab.oidc.token("olga", "openid admin")["access_token"]
    olga = Person(quiet_lab, "alice")
    olga._token = str(token)
    eventually(lambda: olga.sees("status", "--all"), lambda seen: str(job) in seen)
    assert olga.asks("whoami")["role"]["value"] == "SystemAdmin"
    assert olga.sees("status") == set()


@pytest.mark.story
@pytest.mark.spec("AUTH-10")
def test_a_service_without_a_mapping_owns_nothing(quiet_lab: Lab) -> None:
    job = quiet_lab.sbatch("alice", wrap="sleep 120")
    quiet_lab.wait_job_state(job, "RUNNING")
    robot = Person(quiet_lab, "alice")
    robot._token = str(quiet_lab.oidc.robot_token("allocations:read")["access_token"])
    assert robot.asks("whoami")["user"]["value"] == ""
    assert robot.sees("status", "--all") == set()
    assert robot.tries("status", str(job)).code == 102


@pytest.mark.story
@pytest.mark.spec("ALLOC-6")
def test_nodes_answers_what_sinfo_answers(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", "-w", "n2", "--gpus-per-node=3", wrap="sleep 120")
    quiet_lab.wait_job_state(job, "RUNNING")
    nodes = eventually(
        lambda: {each["name"]: each for each in alice.asks("nodes")["nodes"]},
        lambda seen: seen["n2"]["gpus_allocated"] == 3,
    )
    assert nodes["n2"]["slurm_state"].startswith("mixed")
    assert (nodes["n1"]["switch"], nodes["n3"]["switch"]) == ("s1", "s2")
    # Jobs and nodes are read by themselves; either may be seen first.
    eventually(lambda: alice.asks("nodes", "n2")["allocations"], lambda seen: seen == [str(job)])
    quiet_lab.ctl(["scontrol", "update", "nodename=n3", "state=drain", "reason=fan"])
    try:
        drained = eventually(
            lambda: alice.asks("nodes", "n3")["node"], lambda seen: seen["state"] == "drained"
        )
        assert drained["reason"] == "fan"
    finally:
        quiet_lab.ctl(["scontrol", "update", "nodename=n3", "state=resume"])
    assert alice.tries("nodes", "n77").code == 102


@pytest.mark.story
@pytest.mark.spec("ALLOC-6")
def test_history_says_how_a_job_ended(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", "-J", "oops", wrap="exit 3")
    quiet_lab.wait_job_state(job, "FAILED")
    (row,) = eventually(
        lambda: _named(alice.asks("history"), str(job)),
        lambda rows: rows != [] and rows[0]["state"] == "failed",
    )
    assert row["exit_code"] == {"code": 3, "signal": 0}


@pytest.mark.story
@pytest.mark.spec("ALLOC-4", "CLI-2")
def test_wait_ends_with_what_became_of_the_job(quiet_lab: Lab, alice: Person) -> None:
    good = quiet_lab.sbatch("alice", wrap="sleep 1")
    bad = quiet_lab.sbatch("alice", wrap="exit 3")
    long = quiet_lab.sbatch("alice", wrap="sleep 120")
    assert alice.tries("wait", str(good), "--exit-status").code == 0
    assert alice.tries("wait", str(bad)).code == 0
    assert alice.tries("wait", str(bad), "--exit-status").code == 100
    assert alice.tries("wait", str(long), "--exit-status", "--timeout", "2s").code == 101
    quiet_lab.jobs.cancel(long)
    assert alice.tries("wait", str(long), "--exit-status").code == 103
    assert alice.tries("wait", "99999999", "--exit-status").code == 102
