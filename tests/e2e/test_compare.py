"""Two runs beside each other: what differs, and how sure that is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.e2e.topped import debugged
from tests.eventually import eventually

pytestmark = pytest.mark.lab


@pytest.mark.story
@pytest.mark.spec("COMPARE-1", "COMPARE-2", "COMPARE-3")
def test_two_runs_that_use_different_memory(lab: Lab, alice: Person, bob: Person) -> None:
    """Both were measured closely, and are over: nobody switches anything for them any more."""
    with ExitStack() as both:
        jobs = []
        for node, size in (("n1", 40), ("n2", 80)):
            work = f"/usr/bin/python3 -c 'import time; x = bytearray({size} << 20); time.sleep(25)'"
            running = debugged(lab, alice, "-w", node, f"--mem={size * 4}M", wrap=work)
            jobs.append(str(both.enter_context(running)))
        for job in jobs:
            lab.wait_job_state(int(job), "COMPLETED", 60)
    (memory,) = eventually(
        lambda: alice.asks("compare", *jobs, "--metric", "memory_used")["metrics"],
        lambda found: [each["sureness"] for each in found[0]["differences"]] == ["sure"],
    )
    (one,) = memory["differences"]
    assert one["change"]["absolute"] == pytest.approx(40 << 20, rel=0.05)
    assert {each["step_s"] for each in memory["lines"]} == {1.0}
    failed = alice.tries("compare", *jobs, "--fail-on", "memory_used>20%")
    assert failed.code == 113, failed
    passed = alice.tries("compare", *jobs, "--fail-on", "memory_used<-20%")
    assert passed.code == 0, passed
    refused = {
        (tried.code, tried.err.replace("999999", "ID").replace(jobs[0], "ID"))
        for first in (jobs[0], "999999")
        for tried in [bob.tries("compare", first, jobs[1])]
    }
    assert len(refused) == 1
