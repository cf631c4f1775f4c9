"""A job whose process holds whoever reads it: it costs that job, and nobody beside it.

The attack is real (`tests/attacks/frozen_exec.py`). While it lasts, whatever reads that process in
`/proc` on this machine hangs, `ps` and `pkill` too: nothing here does, and it ends with its job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lattice.domain.nodejobs import UNREADABLE
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.e2e.topped import debugged, measured_top, top
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

_ATTACK = Path(__file__).parents[1] / "attacks" / "frozen_exec.py"
_SMALL = ("-w", "n1", "-c1", "--mem=100")
_LINES = 300


@contextmanager
def frozen_job(lab: Lab) -> Iterator[int]:
    """A job of alice's on n1, whose process can't be read; cancelled in the end."""
    home = lab.layout.home / "alice"
    (home / _ATTACK.name).write_text(_ATTACK.read_text())
    (home / _ATTACK.name).chmod(0o644)
    over = home / "frozen-exec-over"
    over.unlink(missing_ok=True)
    attack = f"exec /usr/bin/python3 ~/{_ATTACK.name} 300 ~/{over.name}"
    job = lab.sbatch("alice", *_SMALL, wrap=attack)
    output = home / f"slurm-{job}.out"
    try:
        eventually(
            lambda: output.read_text() if output.exists() else "", lambda text: "held" in text
        )
        yield job
    finally:
        # Slurm could not end it: slurmstepd reads a process before it signals it, and hangs.
        over.touch()
        lab.run_as("alice", ["scancel", str(job)])
        lab.wait_job_state(job, ("CANCELLED", "FAILED", "COMPLETED"))


def followed(bob: Person, job: int) -> list[int]:
    """What bob saw live, to the end of the job."""
    told = bob.lattice("logs", str(job), "--follow", "--stdout", env=bob.bearer, timeout_s=300)
    assert told.code == 0, told
    return numbers(told.out.splitlines(), "b")


@pytest.mark.spec("LOG-3", "LOG-5")
@pytest.mark.threat("unreadable-process")
def test_another_s_job_is_followed_live_to_its_last_line(quiet_lab: Lab, bob: Person) -> None:
    """Twice: a job that begins after the attack, and the next one, when all have settled."""
    with frozen_job(quiet_lab):
        for _ in range(2):
            wrap = script("b", _LINES, pause_s=0.02)
            job = quiet_lab.sbatch("bob", *_SMALL, wrap=wrap)
            assert followed(bob, job) == list(range(_LINES))
            assert quiet_lab.wait_job_state(job, "COMPLETED") == "COMPLETED"


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("unreadable-process")
def test_a_job_that_ran_before_goes_on_to_be_followed(quiet_lab: Lab, bob: Person) -> None:
    job = quiet_lab.sbatch("bob", *_SMALL, wrap=script("b", 1500, pause_s=0.02))
    quiet_lab.wait_job_state(job, "RUNNING")
    with frozen_job(quiet_lab):
        assert followed(bob, job) == list(range(1500))


@pytest.mark.spec("TOP-2", "SRC-2")
@pytest.mark.threat("unreadable-process")
def test_figures_of_another_go_on_and_the_job_itself_says_why_it_has_none(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    with frozen_job(quiet_lab) as frozen, debugged(quiet_lab, bob, *_SMALL) as job:
        answer = measured_top(bob, job)
        assert UNREADABLE not in json.dumps(answer)
        eventually(lambda: json.dumps(top(alice, frozen)), lambda text: UNREADABLE in text)


@pytest.mark.spec("LOG-3")
def test_the_agent_ends_and_begins_anew_meanwhile(quiet_lab: Lab, bob: Person) -> None:
    agent = quiet_lab.node("n1").agent
    try:
        with frozen_job(quiet_lab):
            agent.stop()
            agent.start()
            job = quiet_lab.sbatch("bob", *_SMALL, wrap=script("b", _LINES, pause_s=0.02))
            assert followed(bob, job) == list(range(_LINES))
    finally:
        agent.start()
