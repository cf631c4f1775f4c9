"""What a job wrote while its agent could not watch is there in the end, or it is said why not.

Real processes, real files, short jobs: they begin and end within the time that nobody watches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.laboratory import Lab
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person, Said
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

ABSENT = 76
LINES = 50


@pytest.fixture(autouse=True)
def as_before(quiet_lab: Lab) -> Iterator[None]:
    """Whatever a story did to agents and their helpers."""
    yield
    for name in ("n1", "n2", "n3"):
        quiet_lab.node(name).agent.start()


def said_of(alice: Person, job: int, *words: str) -> Said:
    return alice.tries("logs", str(job), *words)


def known_to_be_over(alice: Person, job: int) -> None:
    """The servers know it, too."""
    eventually(lambda: alice.card(job)["allocation"]["state"], lambda state: state == "completed")


def complete(alice: Person, job: int, writer: str, count: int = LINES) -> None:
    """Every line once and in order; until then no answer is empty and ends with 0."""

    def read() -> list[int]:
        said = said_of(alice, job)
        assert said.out or said.code == ABSENT, said
        return numbers(said.out.splitlines(), writer)

    known_to_be_over(alice, job)
    seen = eventually(read, lambda found: len(found) >= count)
    assert seen == list(range(count))


def short_job(lab: Lab, writer: str, node: str = "n1") -> int:
    job = lab.sbatch("alice", f"--nodelist={node}", wrap=script(writer, LINES, pause_s=0.1))
    lab.wait_job_state(job, "COMPLETED")
    return job


@contextmanager
def stopped(lab: Lab, node: str, least_s: float) -> Iterator[None]:
    """SIGSTOP; for at least so long."""
    agent = lab.node(node).agent
    began = time.monotonic()
    agent.freeze()
    try:
        yield
        time.sleep(max(0.0, least_s - (time.monotonic() - began)))
    finally:
        agent.thaw()


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("starved-agent")
@pytest.mark.story
def test_an_agent_stopped_for_16_s_across_a_job_of_5_s(quiet_lab: Lab, alice: Person) -> None:
    with stopped(quiet_lab, "n3", 16):
        time.sleep(2)
        job = short_job(quiet_lab, "s", "n3")
        known_to_be_over(alice, job)
        said = said_of(alice, job)
        assert said.code == ABSENT, said
        assert "n3" in said.err
    complete(alice, job, "s")


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("starved-agent")
@pytest.mark.long
def test_several_jobs_in_one_absence(quiet_lab: Lab, alice: Person) -> None:
    with stopped(quiet_lab, "n1", 30):
        jobs = [short_job(quiet_lab, f"m{number}") for number in range(3)]
    for number, job in enumerate(jobs):
        complete(alice, job, f"m{number}")


@pytest.mark.spec("LOG-3")
@pytest.mark.long
def test_an_agent_killed_across_a_short_job(quiet_lab: Lab, alice: Person) -> None:
    agent = quiet_lab.node("n2").agent
    agent.kill()
    job = short_job(quiet_lab, "k", "n2")
    known_to_be_over(alice, job)
    said = said_of(alice, job)
    assert (said.code, said.out) == (ABSENT, ""), said
    agent.start()
    complete(alice, job, "k")


@pytest.mark.spec("LOG-3")
@pytest.mark.long
def test_an_agent_stopped_and_its_job_followed(quiet_lab: Lab, alice: Person) -> None:
    """Whoever follows across the absence has every line, or is told that they are missing."""
    job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap=script("f", LINES, pause_s=0.1))
    quiet_lab.wait_job_state(job, {"RUNNING", "COMPLETED"})
    with stopped(quiet_lab, "n1", 16):
        following = quiet_lab.popen_as(
            "alice", ["lattice", "logs", str(job), "--follow"], env=alice.bearer
        )
    out, err = following.communicate(timeout=120)
    if following.returncode == 0:
        assert numbers(out.splitlines(), "f") == list(range(LINES)), err
    else:
        assert following.returncode == ABSENT, err
    complete(alice, job, "f")


@pytest.mark.spec("LOG-3")
def test_a_missing_helper_is_named_and_what_it_could_not_open_comes_later(
    quiet_lab: Lab, alice: Person
) -> None:
    helper = quiet_lab.node("n1").agent.helper
    helper.stop()
    job = short_job(quiet_lab, "h")
    known_to_be_over(alice, job)
    said = eventually(
        lambda: said_of(alice, job),
        lambda said: said.code == ABSENT and "lattice-helper" in said.err,
    )
    assert said.out == ""
    helper.up()
    complete(alice, job, "h")


@pytest.mark.spec("LOG-3")
@pytest.mark.long
def test_a_full_disk_of_the_agent_is_named_and_what_it_could_not_keep_comes_later(
    quiet_lab: Lab, alice: Person
) -> None:
    """On a small file system of its own, which is filled while the agent runs."""
    node = quiet_lab.node("n1")
    state = str(node.agent.folder / "state")
    node.agent.kill()
    # The agent stays itself: with an older certificate it would be taken for a thief.
    copy = f"{state}-copy"
    node.run(["cp", "-a", state, copy])
    node.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=0777", "tmpfs", state])
    node.run(["cp", "-a", f"{copy}/.", state])
    try:
        node.agent.start()
        first = short_job(quiet_lab, "d")
        complete(alice, first, "d")
        node.run(["sh", "-c", f"cat /dev/zero >{state}/filling"], check=False)
        # Whether there is room is looked at every second.
        time.sleep(3)
        job = short_job(quiet_lab, "e")
        known_to_be_over(alice, job)
        said = eventually(
            lambda: said_of(alice, job),
            lambda said: "spool is full" in said.err or "disk" in said.err,
        )
        assert said.code == ABSENT or numbers(said.out.splitlines(), "e"), said
        node.run(["rm", f"{state}/filling"])
        complete(alice, job, "e")
    finally:
        node.agent.kill()
        node.run(["umount", state])
        node.run(["rm", "-rf", copy])
        node.agent.start_anew()


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("starved-agent")
@pytest.mark.long
def test_a_file_that_was_removed_while_the_agent_was_stopped(quiet_lab: Lab, alice: Person) -> None:
    with stopped(quiet_lab, "n1", 16):
        job = short_job(quiet_lab, "r")
        (quiet_lab.layout.home / "alice" / f"slurm-{job}.out").unlink()
    known_to_be_over(alice, job)

    # The agent may have met the job's processes, and then asks for its file by name.
    gone = ("no output file of it was found", "no such file or directory")
    said = eventually(
        lambda: said_of(alice, job),
        lambda said: said.code == ABSENT and any(each in said.err for each in gone),
    )
    assert said.out == ""


@pytest.mark.spec("LOG-3")
def test_a_job_that_wrote_nothing_is_no_error(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap="sleep 3")
    quiet_lab.wait_job_state(job, "COMPLETED")
    known_to_be_over(alice, job)
    said = eventually(lambda: said_of(alice, job), lambda said: said.code == 0)
    assert said.out == ""
