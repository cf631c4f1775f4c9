"""A node whose clock is five minutes wrong: its logs are whole and in order, its terminals open,
and what is measured there is of the true time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from lab.laboratory import Lab
from lab.wrongclock import wrong_clock
from tests.e2e.at_terminal import PROMPT, at
from tests.e2e.measured import now
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked
from tests.e2e.test_watch import Watching
from tests.e2e.topped import cell, debugged, measured_top, row
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

COUNT = 40
_TICK = re.compile(r"tick (n\d) (\d+) ([\d.]+)$", re.ASCII)
_OUT_OF_ORDER_S = 3.0
"""Lines are stamped when they are read, a moment after they were written."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(300, id="ahead", marks=pytest.mark.long),
        pytest.param(-300, id="behind"),
    ],
)
def ahead_s(request: pytest.FixtureRequest, lab: Lab) -> Iterator[int]:
    """By how much the clock of n2 is wrong."""
    lab.jobs.cancel_all()
    olga = administrator(lab)
    with wrong_clock(lab.node("n2"), request.param):
        eventually(lambda: linked(olga), lambda seen: "n2" in seen)
        yield request.param
        lab.jobs.cancel_all()
    eventually(lambda: linked(olga), lambda seen: "n2" in seen)


def _ticks(text: str) -> list[tuple[str, int, float]]:
    found = (_TICK.search(line) for line in text.splitlines())
    return [(each[1], int(each[2]), float(each[3])) for each in found if each]


def _assert_whole_and_in_order(ticks: list[tuple[str, int, float]], nodes: set[str]) -> None:
    assert {node for node, _, _ in ticks} == nodes
    for node in nodes:
        assert [number for each, number, _ in ticks if each == node] == list(range(COUNT)), node
    latest = 0.0
    for _, _, written in ticks:
        assert written > latest - _OUT_OF_ORDER_S, ticks
        latest = max(latest, written)


@pytest.mark.spec("LOG-7", "LOG-4")
def test_lines_of_two_nodes_are_merged_in_their_true_order(
    ahead_s: int, quiet_lab: Lab, alice: Person
) -> None:
    loop = f"for i in $(seq 0 {COUNT - 1}); do"
    tick = f'{loop} echo "tick $SLURMD_NODENAME $i $(date +%s.%N)"; sleep 0.2; done'
    (quiet_lab.layout.home / "alice" / "tick.sh").write_text(tick + "\n")
    # A file a task, written on the task's own node.
    wrap = "srun -N2 -n2 --output=tick-%j-%t.out bash tick.sh"
    job = quiet_lab.sbatch("alice", "-N2", "-n2", "-w", "n1,n2", wrap=wrap)
    quiet_lab.wait_job_state(job, "RUNNING")
    followed = alice.tries("logs", str(job), "--follow", "--prefix", "none")
    assert followed.code == 0, followed
    _assert_whole_and_in_order(_ticks(followed.out), {"n1", "n2"})
    note = re.search(r"n2: clock ([+-]\d+) s corrected", followed.err)
    assert note, followed.err
    assert abs(int(note[1]) - ahead_s) <= 1
    afterwards = eventually(
        lambda: alice.tries("logs", str(job), "--prefix", "none"),
        lambda said: len(_ticks(said.out)) >= 2 * COUNT,
    )
    _assert_whole_and_in_order(_ticks(afterwards.out), {"n1", "n2"})


@pytest.mark.spec("LOG-3")
def test_a_job_that_is_over_at_once_is_not_missed(
    ahead_s: int, quiet_lab: Lab, alice: Person
) -> None:
    assert ahead_s
    job = quiet_lab.sbatch("alice", "-w", "n2", wrap="echo so soon")
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: alice.tries("logs", str(job)), lambda said: said.out == "so soon\n")


@pytest.mark.spec("ATTACH-1", "AUTH-9")
def test_a_terminal_opens_also_in_front_of_a_helper_that_was_told_nothing_yet(
    ahead_s: int, quiet_lab: Lab, alice: Person
) -> None:
    assert ahead_s
    helper = quiet_lab.node("n2").agent.helper
    job = quiet_lab.sbatch("alice", "-w", "n2", "-c1", wrap="sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    for told in (True, False):
        if not told:
            helper.kill()
            (helper.folder / "clock").unlink()
            helper.up()
            time.sleep(1)  # a grant of the second in which it began may be one it had used before
        with at(alice, "attach", str(job)) as shown:
            shown.until(PROMPT)
            shown.type("id -un; echo job=$SLURM_JOB_ID; hostname\n")
            shown.until(rf"alice\r\njob={job}\r\nn2\r\n")
            shown.type("exit 7\n")
            assert shown.wait() == 7
    # The helper's own word of it.
    assert '"verb": "set_clock"' in helper.process.log_file.read_text()


def _age_s(moment: str) -> float:
    return now() - datetime.fromisoformat(moment).timestamp()


def _seconds_since_it_was_measured(quiet_lab: Lab, alice: Person) -> list[float]:
    """By top and by watch: told is when it was measured, whatever the node's clock says."""
    work = "srun -N2 -n2 sh -c 'while :; do for i in $(seq 5000); do :; done; sleep 0.05; done'"
    with debugged(quiet_lab, alice, "-w", "n[1-2]", wrap=work) as job:
        answer = eventually(
            lambda: measured_top(alice, job, "--per-node", node="n2"),
            lambda seen: seen["origin"]["coverage"] == {"measured": 2, "nodes": 2},
        )
        ages = [float(row(answer, node)["age_s"]) for node in ("n1", "n2")]
        for node in ("n1", "n2"):
            assert 0 < cell(answer, "cpu_utilization", node)["value"] < 150
        watching = Watching(alice, job)
        try:
            record = watching.until(
                lambda told: (
                    told["type"] == "measured" and "n2" in {each["node"] for each in told["nodes"]}
                )
            )
            (there,) = [each for each in record["nodes"] if each["node"] == "n2"]
            ages.append(_age_s(there["time"]))
        finally:
            watching.end()
        assert not [each for each in watching.told if each["type"] == "node"], "none was away"
    return ages


@pytest.mark.spec("TOP-4", "WATCH-1", "SRC-2")
def test_what_is_measured_there_is_not_of_the_future(
    ahead_s: int, quiet_lab: Lab, alice: Person
) -> None:
    ages = _seconds_since_it_was_measured(quiet_lab, alice)
    assert min(ages[:2]) >= 0
    # Told by the true clock: in units of what the node's own is wrong, it was measured now.
    assert [round(each / ahead_s) for each in ages] == [0, 0, 0]


@pytest.mark.timing
@pytest.mark.spec("TOP-4", "WATCH-1", "SRC-2")
def test_what_is_measured_there_is_less_than_ten_seconds_old(
    ahead_s: int, quiet_lab: Lab, alice: Person
) -> None:
    assert ahead_s
    assert max(_seconds_since_it_was_measured(quiet_lab, alice)) < 10


@pytest.mark.spec("WATCH-2")
def test_an_alert_from_there_is_told_with_its_true_time(
    ahead_s: int, quiet_lab: Lab, alice: Person
) -> None:
    assert ahead_s
    begun, eater = now(), "/usr/bin/python3 -c 'x = bytearray(400 << 20)'"
    wrap = f"sleep 9; {eater}; sleep 300"
    with debugged(quiet_lab, alice, "-w", "n2", "--mem=150M", wrap=wrap) as job:
        watching = Watching(alice, job)
        try:
            alert = watching.until(lambda told: told.get("rule") == "oom_kill")
            assert alert["node"] == "n2"
            assert begun - 2 < datetime.fromisoformat(alert["since"]).timestamp() < now() + 2
        finally:
            watching.end()
