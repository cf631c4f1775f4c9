"""One recorded terminal at a time, though the server that has it is cut off from all others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from lab.laboratory import Lab
from lab.sensitive import VCLUSTER
from lab.signed_image import signed_image
from tests.e2e.attached import Attached
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]

_STAMPS = "while :; do echo at $EPOCHREALTIME.; sleep 0.1; done"
_AT = re.compile(r"at (\d+\.\d+)\.")


@pytest.fixture(scope="module")
def alice(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "alice").logged_in("sensitive:claim")


@pytest.fixture(scope="module")
def job(sensitive_lab: Lab, alice: Person) -> Iterator[str]:
    lab = sensitive_lab
    lab.jobs.cancel_all()
    with signed_image(lab, "n1", "n2"):
        assert alice.tries("admin", "claim", "n1", "n2").code == 0
        words = ("submit", "--vcluster", VCLUSTER, "--sbatch=-N2", "--", "srun", "sleep", "3000")
        made = alice.tries(*words)
        assert made.code == 0, made.err
        number = made.out.split()[-1]
        lab.wait_job_state(int(number), "RUNNING")
        yield number
        lab.jobs.cancel_all()
    eventually(lambda: alice.tries("admin", "release", "n[1-2]").code == 0)


@pytest.fixture(autouse=True)
def whole(sensitive_lab: Lab) -> Iterator[None]:
    yield
    put_right(sensitive_lab, administrator(sensitive_lab))


def _seen(terminal: Attached) -> list[float]:
    """When what was shown was written."""
    shown = "".join(each["text"] for each in terminal.events if each.get("message") == "Output")
    return [float(each) for each in _AT.findall(shown)]


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat(3, "second-terminal")
def test_a_server_that_is_cut_off_ends_its_terminal_before_another_opens(
    sensitive_lab: Lab, alice: Person, job: str
) -> None:
    """On another node of the job, where no lock of the first node's helper is in the way."""
    lab = sensitive_lab
    for name in ("n1", "n2"):
        # The first key makes an agent start itself anew.
        words = ("attach", job, "--node", name, "--", "true")
        eventually(partial(alice.tries, *words), lambda said: said.code == 0)
    first = _opened(lab, alice, job, "n1")
    second = first
    try:
        first.shows("at ")
        lab.servers[0].cut_off_state()
        second = _opened(lab, alice, job, "n2")
        second.shows("at ")
        for each in (first, second):
            with suppress(AssertionError):
                each.until(lambda _: False, 2)
        assert _seen(first)[-1] < _seen(second)[0]
        words = [each["word"] for each in first.events if "word" in each]
        assert words[-1]["reason"] == "recording_impossible"
        assert words[-1]["words"] == (
            "recording impossible: the agreed state has not answered for 30 s"
        )
    finally:
        first.close()
        second.close()


def _opened(lab: Lab, alice: Person, job: str, node: str) -> Attached:
    """On n1 by the first server, elsewhere by the second: as soon as it may be."""
    opened: list[Attached] = []

    def is_open() -> bool:
        start = {"node": node, "command": ["bash", "-c", _STAMPS]}
        terminal = Attached(lab, alice, job, first=int(node != "n1"), **start)
        event = terminal.until(lambda each: "word" in each or "refused" in each)
        if event.get("word", {}).get("type") == "opened":
            opened.append(terminal)
            return True
        terminal.close()
        return False

    eventually(is_open, patience_s=300)
    return opened[0]
