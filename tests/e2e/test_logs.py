"""What a job writes, live and afterwards, on real nodes; and what becomes of it under faults."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from lattice.base.failpoints import VARIABLE
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually

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
    """Nothing while it is not known, a second long, that the job has begun."""
    said = person.tries("logs", str(job), *words)
    assert said.code in {0, 75, 76}, said
    return said.out.splitlines()


@pytest.fixture(autouse=True)
def agents_up(quiet_lab: Lab) -> Iterator[None]:
    yield
    for name in ("n1", "n2", "n3"):
        agent = quiet_lab.node(name).agent
        if agent.environment.pop(VARIABLE, ""):
            agent.kill()
        if not agent.process.alive:
            agent.start()


@pytest.mark.story
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
    # Slowly enough to be met at its beginning, in its middle and at its end.
    job = quiet_lab.sbatch(
        "alice", "--nodelist=n1", wrap=script("k", 3000, size=200, pause_s=0.001)
    )
    # Where it stays alive, the place of that name was never reached.
    eventually(lambda: (name, agent.process.alive), lambda seen: not seen[1], pause_s=0.2)
    del agent.environment[VARIABLE]
    agent.start()
    quiet_lab.wait_job_state(job, "COMPLETED")
    complete = eventually(
        lambda: numbers(lines_of(alice, job), "k"), lambda seen: len(seen) >= 3000
    )
    assert complete == list(range(3000))


@pytest.mark.long
@pytest.mark.spec("LOG-3")
def test_a_server_killed_while_following_and_while_storing(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap=script("s", 600, pause_s=0.02))
    quiet_lab.wait_job_state(job, "RUNNING")
    following = quiet_lab.popen_as(
        "alice", ["lattice", "logs", str(job), "--follow"], env=alice.bearer
    )
    time.sleep(3)
    try:
        for server in quiet_lab.servers:
            server.process.kill()
            time.sleep(2)
            server.start()
        out, err = following.communicate(timeout=120)
    finally:
        for server in quiet_lab.servers:
            server.start()
    assert following.returncode == 0, (out[-500:], err)
    assert numbers(out.splitlines(), "s") == list(range(600)), err
    assert numbers(lines_of(alice, job), "s") == list(range(600))


@pytest.mark.spec("LOG-1", "LOG-4")
def test_attempts_are_kept_apart(quiet_lab: Lab, alice: Person) -> None:
    """A requeue truncates the file; what was read of the first attempt stays."""
    job = quiet_lab.sbatch(
        "alice", "--requeue", wrap="echo attempt $SLURM_RESTART_COUNT; sleep 300"
    )
    quiet_lab.wait_job_state(job, "RUNNING")
    eventually(lambda: lines_of(alice, job), lambda seen: seen == ["attempt"])
    quiet_lab.ctl(["scontrol", "requeue", str(job)])
    waiting = eventually(lambda: alice.tries("logs", str(job)), lambda said: "REQUEUE" in said.out)
    assert waiting.out.startswith("attempt\n"), "what it wrote before it waited to run again"
    eventually(lambda: alice.card(job)["allocation"]["state"], lambda state: state == "pending")
    # For a moment nobody may know when it ran before: that is said, never "nothing was written".
    shown = eventually(lambda: alice.tries("logs", str(job)), lambda said: said.code != 75)
    assert shown.out == waiting.out
    quiet_lab.start_requeued(job)
    eventually(lambda: alice.tries("logs", str(job)), lambda said: said.out == "attempt 1\n")
    assert lines_of(alice, job, "--attempt", "1") == waiting.out.splitlines()


@pytest.mark.story
@pytest.mark.spec("LOG-2")
def test_files_of_their_own(quiet_lab: Lab, alice: Person) -> None:
    """Standard error apart, and one file a task on two nodes."""
    task = "sh -c 'echo rank $SLURM_PROCID; sleep 4'"
    inner = f"echo to out; echo to err >&2; srun -N2 -n4 --output=t%t.out {task}"
    job = quiet_lab.sbatch("alice", "-N2", "-n4", "-o", "o.out", "-e", "e.err", wrap=inner)
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(
        lambda: set(lines_of(alice, job, "--stderr", "--prefix", "none")),
        lambda seen: "to err" in seen,
    )
    eventually(
        lambda: {each for each in lines_of(alice, job, "--prefix", "none") if "rank" in each},
        lambda seen: seen == {f"rank {number}" for number in range(4)},
    )
    assert lines_of(alice, job, "--rank", "3", "--prefix", "none") == ["rank 3"]


@pytest.mark.story
@pytest.mark.spec("LOG-3")
def test_the_store_away(quiet_lab: Lab, alice: Person) -> None:
    """Following goes on; everything is stored when it is back."""
    store = quiet_lab.seaweedfs.process
    store.freeze()
    try:
        job = quiet_lab.sbatch("alice", wrap=script("w", 100, pause_s=0.02))
        quiet_lab.wait_job_state(job, "COMPLETED")
        time.sleep(5)
    finally:
        store.thaw()
    eventually(lambda: numbers(lines_of(alice, job), "w"), lambda seen: seen == list(range(100)))


@pytest.mark.story
@pytest.mark.spec("LIMIT-1", "LIMIT-2")
def test_ten_streams_and_no_more(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="echo here; sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    command = ["lattice", "logs", str(job), "--follow"]
    running = [quiet_lab.popen_as("alice", command, env=alice.bearer) for _ in range(10)]
    try:
        for each in running:
            assert each.stdout is not None
            assert each.stdout.readline()
        refused = alice.tries("logs", str(job), "--follow")
        assert refused.code == 80, refused
        assert "10/10" in refused.err
    finally:
        for each in running:
            each.kill()
            each.communicate()


@pytest.mark.spec("AUTH-7", "AUTH-12")
def test_anothers_logs_are_not_there(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="echo private")
    quiet_lab.wait_job_state(job, "COMPLETED")
    theirs = bob.tries("logs", str(job))
    nobodys = bob.tries("logs", "99999")
    assert theirs.code == nobodys.code == 102
    assert theirs.err.replace(str(job), "N") == nobodys.err.replace("99999", "N")
    assert "private" not in theirs.out + theirs.err


@pytest.mark.story
@pytest.mark.spec("LOG-4")
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
