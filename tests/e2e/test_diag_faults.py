"""Faults around a job made for real: each is found by its rule, where it is, and no other cries."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from lab.laboratory import Lab
from lab.wrongclock import wrong_clock
from tests.e2e.diagnosed import (
    PAUSE_S,
    healthy,
    line,
    measured_against,
    page,
    sick,
    telling,
    told,
)
from tests.e2e.node_faults import LINK, SHARE, core_to_itself, second_links, shares
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked
from tests.e2e.topped import debugged, measured_top
from tests.eventually import PATIENCE_S, eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

QUIET_S = 30
SOON_S = 20
"""Two samples of a second each, and what a page or two take."""
STEADY = "srun -N2 -n2 sh -c 'while :; do echo on; sleep 0.2; done'"
READING = f"srun -N2 -n2 sh -c 'while :; do head -c 64 {SHARE}/data | wc -c; sleep 0.2; done'"


@pytest.fixture(
    params=[
        pytest.param(PATIENCE_S, id="at all"),
        pytest.param(SOON_S, id="soon", marks=pytest.mark.timing),
    ]
)
def patience_s(request: pytest.FixtureRequest) -> float:
    """For how long a finding may be waited for."""
    return float(request.param)


@pytest.mark.story
@pytest.mark.spec("DIAG-1", "DIAG-2")
def test_a_link_that_goes_down_and_then_flaps(lab: Lab, alice: Person, patience_s: float) -> None:
    with (
        second_links(lab, "n1", "n2") as links,
        healthy(lab, alice, "-w", "n[1-2]", wrap=STEADY) as job,
    ):
        links["n2"].down()
        answer = telling(alice, job, "link_down", patience_s)
        assert sick(answer) == {"link_down": {"n2"}}
        assert {each["thing"] for each in line(answer, "link_down")["subjects"]} == {LINK}

        links["n2"].up()
        for _ in range(2):
            links["n2"].down()
            links["n2"].up()
        answer = telling(alice, job, "link_flapping", patience_s)
        assert sick(answer) == {"link_flapping": {"n2"}}
        assert {each["thing"] for each in line(answer, "link_flapping")["subjects"]} == {LINK}


def waited_ms(answer: dict[str, Any]) -> float:
    """How long an operation on the share took, as its line has it."""
    (mount,) = [each for each in answer["findings"] if each["title"] == f"{SHARE} (fuse.share)"]
    found = re.search(
        r"([0-9.]+) ms an operation .the job's own calls, by eBPF.", mount["evidence"]
    )
    return float(found[1]) if found else 0.0


def _stop_a_share(lab: Lab, alice: Person, patience_s: float) -> float:
    """First slow, then silent; the seconds that the last page took."""
    with (
        shares(lab, "n1", "n2") as share,
        healthy(lab, alice, "-w", "n[1-2]", wrap=READING) as job,
    ):
        # It is asked twice at each look, and may take a second for both.
        share["n2"].answers_after(0.52)
        answer = telling(alice, job, "slow_mount", patience_s)
        assert sick(answer) == {"slow_mount": {"n2"}}
        slow = line(answer, "slow_mount")
        assert {each["thing"] for each in slow["subjects"]} == {str(SHARE)}
        assert slow["measured"] > slow["target"] == 1
        # What the job waits at each read, by its own system calls: no client counts this share.
        eventually(lambda: waited_ms(page(alice, job)), lambda ms: 500 < ms < 1000,
                   patience_s=patience_s, pause_s=PAUSE_S)  # fmt: skip

        share["n2"].stops_answering()
        begun = time.monotonic()
        answer = telling(alice, job, "hung_mount", patience_s)
        assert sick(answer) == {"hung_mount": {"n2"}}
        assert {each["thing"] for each in line(answer, "hung_mount")["subjects"]} == {str(SHARE)}
        # Whoever asks again is answered faster, and is told since when it has not answered.
        answer = page(alice, job)
        assert sick(answer) == {"hung_mount": {"n2"}}
        since_s = time.monotonic() - begun + 1
        order = [0, line(answer, "hung_mount")["measured"], since_s]
        assert order == sorted(order)
        return float(answer["took_s"])


@pytest.mark.story
@pytest.mark.spec("DIAG-1", "DIAG-3")
def test_a_share_that_is_slow_and_then_stops_answering(lab: Lab, alice: Person) -> None:
    _stop_a_share(lab, alice, PATIENCE_S)


@pytest.mark.timing
@pytest.mark.spec("DIAG-1", "DIAG-3")
def test_a_share_that_stops_answering_is_found_within_20_s_and_again_within_two(
    lab: Lab, alice: Person
) -> None:
    assert _stop_a_share(lab, alice, SOON_S) < 1.75


@pytest.mark.spec("DIAG-1")
@pytest.mark.long
def test_a_clock_that_is_wrong(lab: Lab, alice: Person) -> None:
    olga = administrator(lab)
    lab.jobs.cancel_all()
    with wrong_clock(lab.node("n2"), 300):
        eventually(lambda: linked(olga), lambda seen: "n2" in seen)
        with debugged(lab, alice, "-w", "n[1-2]", wrap=STEADY) as job:
            answer = telling(alice, job, "clock")
            assert sick(answer) == {"clock": {"n2"}}
            assert line(answer, "clock")["measured"] == pytest.approx(300, abs=1)
            measured_top(alice, job, "--per-node", node="n2")
            assert told(alice, job, "clock") == {"clock": {"n2"}}
        lab.jobs.cancel_all()
    eventually(lambda: linked(olga), lambda seen: "n2" in seen)


_WORKER = """
import time
while True:
    print("step")
    end = time.process_time() + 0.05
    while time.process_time() < end: pass
    time.sleep(0.2)
"""


@pytest.mark.spec("DIAG-1", "DIAG-5")
@pytest.mark.long
def test_output_that_waits_in_a_buffer(lab: Lab, alice: Person, patience_s: float) -> None:
    """Beside it runs one that is as quiet, and holds nothing back."""
    home = lab.layout.home / "alice"
    (home / "buffered.py").write_text(_WORKER)
    (home / "silent.py").write_text(_WORKER.replace('print("step")', "pass"))
    with (
        measured_against(lab, {"quiet_s": QUIET_S}),
        debugged(lab, alice, "-w", "n1", wrap="/usr/bin/python3 buffered.py") as job,
        debugged(lab, alice, "-w", "n2", wrap="/usr/bin/python3 -u silent.py") as other,
    ):
        measured_top(alice, job)
        assert sick(page(alice, job)) == {}
        answer = telling(alice, job, "buffered_output", QUIET_S + patience_s)
        assert sick(answer) == {"buffered_output": {"n1"}}
        found = line(answer, "buffered_output")
        assert found["measured"] >= QUIET_S
        assert "PYTHONUNBUFFERED" in found["remedy"]
        time.sleep(2)  # the other began a moment later
        assert sick(page(alice, other)) == {}


_RANK = """
import os, socket, time
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
slow = os.path.expanduser("~/rank-is-slow")
def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass
if rank == 0:
    door = socket.create_server(("", 47013))
    peers = [door.accept()[0] for _ in range(size - 1)]
else:
    while True:
        try: peers = [socket.create_connection(("n1", 47013), timeout=300)]; break
        except OSError: time.sleep(0.1)
while True:
    compute(3 if rank == 2 and os.path.exists(slow) else 0.02)
    # All wait for all: rank 0 hears everybody, and then lets everybody go on.
    if rank == 0:
        for each in peers: each.recv(1)
        time.sleep(0.1)
        for each in peers: each.send(b".")
        print("step", flush=True)
    else:
        peers[0].send(b"."); peers[0].recv(1)
"""


@pytest.mark.spec("DIAG-1")
def test_one_rank_of_four_that_is_slower(lab: Lab, alice: Person) -> None:
    """The others wait for it at each step."""
    home = lab.layout.home / "alice"
    (home / "in_step.py").write_text(_RANK)
    (home / "rank-is-slow").unlink(missing_ok=True)
    work = "srun -N2 -n4 --ntasks-per-node=2 /usr/bin/python3 in_step.py"
    with healthy(lab, alice, "-w", "n[1-2]", "-n4", "--ntasks-per-node=2", wrap=work) as job:
        core_to_itself(lab, job, 2)
        (home / "rank-is-slow").touch()
        answer = telling(alice, job, "straggler")
        assert sick(answer) == {"straggler": {"n2"}}
        (subject,) = line(answer, "straggler")["subjects"]
        assert (subject["node"], subject["rank"]) == ("n2", 2)
