"""Terminals through real servers and agents: what survives what, and what is said when it doesn't.

The client here is a program that tells all it sees (`attach_client`); the command has stories of
its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.laboratory import Lab
from tests.e2e.attached import attached
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture(autouse=True)
def whole(quiet_lab: Lab, olga: Person) -> Iterator[None]:
    """Everything is up before a story, and again after it."""
    put_right(quiet_lab, olga)
    yield
    put_right(quiet_lab, olga)


def _rest(lab: Lab, person: Person, path: str, *more: str) -> Any:
    """An answer of the first server's."""
    done = lab.ctl(
        [
            *("curl", "-sS", "--cacert", str(lab.layout.certificates / "ca.crt")),
            *("-H", f"Authorization: Bearer {person.bearer['LATTICE_TOKEN']}"),
            *more,
            lab.servers[0].url + path,
        ],
        check=False,
    )
    return json.loads(done.stdout or "{}")


def _record(lab: Lab, person: Person, session: str) -> dict[str, Any]:
    found = _rest(lab, person, "/v1/attach/sessions")["sessions"]
    return next((each for each in found if each["id"] == session), {})


def _running(lab: Lab, user: str, *words: str, work: str = "sleep 600") -> int:
    job = lab.sbatch(user, *(words or ("-w", "n1")), wrap=work)
    lab.wait_job_state(job, "RUNNING")
    return job


@pytest.mark.spec("ATTACH-1", "ATTACH-9")
def test_a_terminal_its_exit_code_and_its_record(lab: Lab, alice: Person) -> None:
    work = "srun --overlap -N2 -n2 sleep 600"
    job = _running(lab, "alice", "-N", "2", "-w", "n[1-2]", work=work)
    step = ("squeue", "-h", "-s", "-j", str(job))
    eventually(lambda: lab.ctl(step).stdout, lambda seen: f"{job}.0" in seen)
    with attached(lab, alice, job, node="n2") as terminal:
        assert terminal.word("opened")["node"] == "n2"
        assert terminal.message("Started")["accounted"] is True
        assert _record(lab, alice, terminal.session)["ended"] is None
        terminal.type("echo I am $(id -un) on $(uname -n) in $SLURM_JOB_ID\n")
        terminal.shows(f"I am alice on n2 in {job}")
        terminal.type("exit 7\n")
        assert terminal.message("Exit")["code"] == 7
        terminal.ended()
    over = eventually(
        lambda: _record(lab, alice, terminal.session), lambda each: each["ended"] is not None
    )
    assert (over["reason"], over["exit_code"], over["node"]) == ("exited", 7, "n2")
    assert over["allocation"].split("@")[0] == str(job)


@pytest.mark.spec("AUTH-7", "AUTH-12")
def test_anothers_job_is_not_there(lab: Lab, alice: Person, bob: Person, carol: Person) -> None:
    """Attack 1, over the WebSocket."""
    job = _running(lab, "alice")
    for stranger in (bob, carol):
        said = []
        for name in (str(job), "99999"):
            with attached(lab, stranger, name) as terminal:
                word = terminal.word("error")
                said.append((word["code"], word["message"].replace(name, "ID"), word["hint"]))
        assert said[0] == said[1]
        assert said[0][0] == "not_found"


def _kill_the_server_of_a_terminal(lab: Lab, alice: Person) -> float:
    """The seconds until the terminal was opened again."""
    job = _running(lab, "alice")
    with attached(lab, alice, job) as terminal:
        terminal.shows("$")
        terminal.type(
            "for i in $(seq 1 200); do echo line-$i; sleep 0.02; done; echo all-$((9*9))\n"
        )
        terminal.shows("line-20")
        lab.servers[0].process.kill()
        begun = time.monotonic()
        opened = terminal.word("opened")
        pause_s = time.monotonic() - begun
        assert opened["sequence"] == 2
        shown = terminal.shows("all-81")
        text = "".join(each.get("text", "") for each in terminal.events)
        assert [f"line-{n}\r\n" in text for n in range(1, 201)].count(False) == 0
        assert text.count("line-150\r\n") == 1
        assert "line-199" in shown
        terminal.type("exit\n")
        assert terminal.message("Exit")["code"] == 0
    return pause_s


@pytest.mark.spec("ATTACH-4")
def test_a_server_that_is_killed_is_a_pause(lab: Lab, alice: Person) -> None:
    _kill_the_server_of_a_terminal(lab, alice)


@pytest.mark.timing
@pytest.mark.spec("ATTACH-4")
def test_a_server_that_is_killed_is_a_pause_of_five_seconds_at_most(
    lab: Lab, alice: Person
) -> None:
    assert _kill_the_server_of_a_terminal(lab, alice) <= 5


@pytest.mark.story
@pytest.mark.spec("ATTACH-5")
def test_where_the_agent_is_missing_the_command_is_named(
    lab: Lab, alice: Person, olga: Person
) -> None:
    job = _running(lab, "alice")
    lab.node("n1").agent.kill()
    eventually(lambda: linked(olga), lambda seen: "n1" not in seen)
    with attached(lab, alice, job, command=["top"]) as terminal:
        word = terminal.word("error")
    assert f"srun --jobid={job} --overlap --pty -w n1 top" in word["hint"]
    assert word["code"] == "unavailable"


@pytest.mark.story
@pytest.mark.spec("ATTACH-6")
def test_a_requeued_job_ends_its_terminals_with_the_words(lab: Lab, alice: Person) -> None:
    job = _running(lab, "alice", "-w", "n1", "--requeue")
    with attached(lab, alice, job) as terminal:
        terminal.shows("$")
        lab.slurm.scontrol("requeue", str(job))
        ended = terminal.word("ended")
    assert ended["words"] == (
        "[lattice] Allocation preempted. Session suspended. "
        f"Use 'lattice attach {job}' to reconnect after rescheduling."
    )
    with attached(lab, alice, job) as again:
        word = again.word("error")
    assert word["message"] in {
        "allocation is being checkpointed — attach unavailable until rescheduled",
        "cannot attach to allocation in state 'pending'; must be 'running'",
        "cannot attach to allocation in state 'completing'; must be 'running'",
    }


@pytest.mark.spec("ATTACH-1", "ATTACH-9")
def test_the_end_of_the_job_is_said_before_the_shells(lab: Lab, alice: Person) -> None:
    job = _running(lab, "alice")
    with attached(lab, alice, job) as terminal:
        terminal.shows("$")
        lab.jobs.cancel(job)
        words = terminal.notice("job_ended")
        assert words.startswith(f"job {job} ended: CANCELLED")
        end = terminal.until(
            lambda each: (
                each.get("message") == "Exit" or each.get("word", {}).get("type") == "ended"
            ),
            20,
        )
        assert end
    over = eventually(
        lambda: _record(lab, alice, terminal.session), lambda each: each["ended"] is not None
    )
    assert over["reason"] == "job_ended"


@pytest.mark.spec("ATTACH-9")
def test_without_a_quorum_nobody_new_attaches_and_who_is_in_stays(lab: Lab, alice: Person) -> None:
    job = _running(lab, "alice")
    with attached(lab, alice, job) as terminal:
        terminal.shows("$")
        for member in lab.etcd.members[:2]:
            member.freeze()
        with attached(lab, alice, job) as late:
            word = late.word("error")
        assert word["code"] == "unavailable"
        assert word["message"] == "QuorumUnavailable: cannot record who attaches"
        terminal.type("echo still-$((6*7))\n")
        terminal.shows("still-42")
        for member in lab.etcd.members[:2]:
            member.thaw()


def _take_the_place_of_a_vanished_client(lab: Lab, alice: Person) -> float:
    """The seconds until its place was free."""
    job = _running(lab, "alice")
    clients = []
    try:
        for number in range(5):
            made = attached(lab, alice, job, first=number % 2)
            clients.append((made, made.__enter__()))
            clients[-1][1].word("opened")
        with attached(lab, alice, job) as sixth:
            assert sixth.word("error")["code"] == "rate_limited"
        clients[0][1].kill()
        begun = time.monotonic()

        def answer() -> str:
            with attached(lab, alice, job) as again:
                return str(again.until(lambda each: "word" in each)["word"]["type"])

        eventually(answer, lambda kind: kind == "opened", pause_s=1)
        return time.monotonic() - begun
    finally:
        for made, _ in clients:
            made.__exit__(None, None, None)


@pytest.mark.long
@pytest.mark.spec("LIMIT-1", "LIMIT-3")
def test_the_sixth_terminal_is_refused_and_a_vanished_client_frees_its_place(
    lab: Lab, alice: Person
) -> None:
    _take_the_place_of_a_vanished_client(lab, alice)


@pytest.mark.timing
@pytest.mark.long
@pytest.mark.spec("LIMIT-1", "LIMIT-3")
def test_a_vanished_client_frees_its_place_within_45_s(lab: Lab, alice: Person) -> None:
    assert _take_the_place_of_a_vanished_client(lab, alice) <= 45
