"""What a job was given, what it used, and what to ask for next time."""

from __future__ import annotations

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.e2e.topped import debugged
from tests.eventually import eventually

pytestmark = pytest.mark.lab


@pytest.mark.story
@pytest.mark.spec("TOP-5")
def test_a_job_that_is_over(lab: Lab, alice: Person, bob: Person) -> None:
    """What it asked for beside what it used; too short for advice; and nobody else is told."""
    work = "/usr/bin/python3 -c 'import time; x = bytearray(60 << 20); time.sleep(14)'"
    with debugged(lab, alice, "-w", "n1", "--mem=1G", "--time=60", wrap=work) as job:
        lab.wait_job_state(job, "COMPLETED", 60)
        report = eventually(
            lambda: alice.tries("report", str(job)),
            lambda said: "completed" in said.out and "100 % of nodes" in said.out,
        )
        (memory,) = [line for line in report.out.splitlines() if "Memory peak" in line]
        peak = float(memory.split()[2])
        assert 60 <= peak <= 70, memory
        assert "1.0 GiB" in memory
        answer = alice.asks("report", str(job))
        assert answer["finished"]
        assert answer["withheld"], "too short for advice that rests on measurements"
        assert bob.tries("report", str(job)).code == 102
