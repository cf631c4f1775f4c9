"""Recorded terminals as pipes: bytes that are no text, and more of them than fit in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from lab.sensitive import VCLUSTER
from lab.signed_image import signed_image
from tests.e2e.at_terminal import piped
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(400)]

_SIZE = 12 * 1024 * 1024
"""More than what may wait for the object store."""


@pytest.fixture(scope="module")
def alice(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "alice").logged_in("sensitive:claim")


@pytest.fixture(scope="module")
def job(sensitive_lab: Lab, alice: Person) -> Iterator[str]:
    lab = sensitive_lab
    lab.jobs.cancel_all()
    with signed_image(lab, "n1"):
        made = alice.tries("admin", "claim", "n1")
        assert made.code == 0, made.err
        made = alice.tries("submit", "--vcluster", VCLUSTER, "--sbatch=-c1", "--", "sleep", "3000")
        assert made.code == 0, made.err
        number = made.out.split()[-1]
        lab.wait_job_state(int(number), "RUNNING")
        # The first key makes the agent start itself anew.
        eventually(lambda: alice.tries("attach", number, "--", "true").code == 0)
        yield number
        lab.jobs.cancel_all()
    eventually(lambda: alice.tries("admin", "release", "n1").code == 0)


@pytest.mark.spec("AUDIT-4", "ATTACH-3")
@pytest.mark.threat("recording-bypass")
def test_bytes_that_are_no_text_pass_as_they_are_and_are_recorded_whole(
    sensitive_lab: Lab, alice: Person, job: str
) -> None:
    text = os.urandom(_SIZE)
    done = piped(alice, "attach", job, "--", "sh", "-c", "cat; exit 3", text=text)
    assert done.returncode == 3, done.stderr[-2000:]
    assert done.stdout == text
    done = piped(alice, "attach", job, "--", "sh", "-c", "cat | wc -c", text=text)
    assert (done.returncode, done.stdout.strip()) == (0, b"%d" % _SIZE), done.stderr[-2000:]
    eventually(
        lambda: alice.asks("audit", "query", "--allocation", job, "--act", "attach-end")["rows"],
        lambda rows: sum("recording of" in each["sentence"] for each in rows) >= 3,
    )
    verified = administrator(sensitive_lab).tries("audit", "verify")
    assert verified.code == 0, verified
