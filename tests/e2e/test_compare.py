"""Two runs beside each other: what differs, and how sure that is."""

from __future__ import annotations

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person, eventually
from tests.e2e.topped import debugged

pytestmark = [pytest.mark.lab, pytest.mark.spec("COMPARE-1", "COMPARE-3", "COMPARE-4")]


def test_two_runs_that_use_different_memory(lab: Lab, alice: Person, bob: Person) -> None:
    jobs = []
    for size in (40, 80):
        work = f"/usr/bin/python3 -c 'import time; x = bytearray({size} << 20); time.sleep(25)'"
        with debugged(lab, alice, "-w", "n1", f"--mem={size * 4}M", wrap=work) as job:
            lab.wait_job_state(job, "COMPLETED", 60)
            jobs.append(str(job))
    said = eventually(
        lambda: alice.tries("compare", *jobs, "--metric", "memory_used"),
        lambda said: said.code == 0 and "memory_used" in said.out,
        60,
    )
    assert "160" in said.out or "mem" in said.out.lower()
    answer = alice.asks("compare", *jobs, "--metric", "memory_used")
    assert str(answer)
    failed = alice.tries("compare", *jobs, "--fail-on", "memory_used>20%")
    assert failed.code == 113, failed
    passed = alice.tries("compare", *jobs, "--fail-on", "memory_used<-20%")
    assert passed.code == 0, passed
    refused = {
        (tried.code, tried.err.replace(jobs[0], "ID").replace("999999", "ID"))
        for first in (jobs[0], "999999")
        for tried in [bob.tries("compare", first, jobs[1])]
    }
    assert len(refused) == 1
