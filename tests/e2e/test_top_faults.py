"""What people are shown of a job's use while parts are away: never an old number as a new one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from lab.laboratory import Lab
from tests.e2e.measured import Measured
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, put_right
from tests.e2e.test_watch import Watching
from tests.e2e.topped import WORKS, cell, debugged, measured_top, row, top
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def whole(lab: Lab) -> Iterator[None]:
    yield
    store = lab.victoriametrics.processes[0]
    if store.condition == "frozen":
        store.thaw()
    store.up()
    put_right(lab, administrator(lab))


@pytest.mark.spec("SRC-2")
def test_the_store_is_away_for_a_minute(lab: Lab, alice: Person) -> None:
    """Live from the nodes meanwhile, and it says so; afterwards there is no hole in the series."""
    store = lab.victoriametrics.processes[0]
    measured = Measured(lab, alice)
    with debugged(lab, alice, "-w", "n[1-2]", wrap=f"srun sh -c '{WORKS}'") as job:
        measured_top(alice, job)
        store.kill()
        gone = time.time()
        began = time.monotonic()
        answer = measured_top(alice, job, "--per-node", node="n2")
        print(f"live after {time.monotonic() - began:.1f} s")
        assert "agents" in answer["origin"]["via"]
        assert cell(answer, "cpu_utilization", "n1")["value"] is not None
        said = alice.tries("top", str(job), "--once")
        assert "store" in said.out + said.err
        time.sleep(max(0.0, gone + 60 - time.time()))
        store.up()
        back = time.time()

        def points() -> float:
            counted = (
                f'min(count_over_time(lattice_cpu_seconds_total{{alloc="{job}"}}'
                f"[{int(back - gone)}s] @ {back:.0f}))"
            )
            found = measured.query(counted)
            return float(found[0]["value"][1]) if found else 0.0

        wanted = (back - gone) * 0.9
        eventually(points, lambda count: count >= wanted)
        answer = measured_top(alice, job)
        assert answer["origin"]["via"] == "store" or "agents" not in answer["origin"]["via"]


def _look_while_the_store_hangs(lab: Lab, alice: Person) -> float:
    store = lab.victoriametrics.processes[0]
    with debugged(lab, alice, "-w", "n1") as job:
        measured_top(alice, job)
        store.freeze()
        began = time.monotonic()
        said = alice.tries("top", str(job), "--once")
        took_s = time.monotonic() - began
        assert said.code == 0, said
        assert "store" in said.out + said.err
    return took_s


@pytest.mark.spec("SRC-2")
def test_a_store_that_hangs_is_not_waited_for(lab: Lab, alice: Person) -> None:
    _look_while_the_store_hangs(lab, alice)


@pytest.mark.timing
@pytest.mark.spec("SRC-2")
def test_while_the_store_hangs_an_answer_comes_within_eight_seconds(
    lab: Lab, alice: Person
) -> None:
    assert _look_while_the_store_hangs(lab, alice) < 8


@pytest.mark.spec("SRC-1", "SRC-2")
def test_an_agent_frozen_and_one_killed(lab: Lab, alice: Person) -> None:
    """Its row grows old, then says why it is empty; the other node's goes on."""
    with debugged(lab, alice, "-w", "n[1-2]", wrap=f"srun sh -c '{WORKS}'") as job:
        measured_top(alice, job, "--per-node", node="n2")
        lab.node("n2").agent.freeze()
        try:
            answer = eventually(
                lambda: top(alice, job, "--per-node"),
                lambda seen: cell(seen, "cpu_utilization", "n2").get("value") is None,
            )
            assert row(answer, "n2")["reason"]
            assert cell(answer, "cpu_utilization", "n1")["value"] is not None
            assert answer["origin"]["coverage"] == {"measured": 1, "nodes": 2}
        finally:
            lab.node("n2").agent.thaw()
        measured_top(alice, job, "--per-node", node="n2")
        lab.node("n1").agent.kill()
        eventually(
            lambda: top(alice, job, "--per-node"),
            lambda seen: cell(seen, "cpu_utilization", "n1").get("value") is None,
        )
        lab.node("n1").agent.start()
        measured_top(alice, job, "--per-node", node="n1")


@pytest.mark.spec("WATCH-1")
def test_a_watched_node_is_cut_off(lab: Lab, alice: Person) -> None:
    """Told as stale, since when; back when it answers; and the rest goes on."""
    with debugged(lab, alice, "-w", "n[1-2]", wrap="sleep 600") as job:
        watching = Watching(alice, job)
        try:
            watching.until(lambda told: told["type"] == "measured" and told["measured"] == 2)
            lab.node("n2").cut_off()
            cut = time.monotonic()
            stale = watching.until(lambda told: told["type"] == "node" and told["word"] == "stale")
            print(f"stale after {time.monotonic() - cut:.1f} s")
            assert stale["node"] == "n2"
            assert stale["since"]
            watching.until(lambda told: told["type"] == "measured" and told["measured"] == 1)
            lab.node("n2").heal()
            watching.until(lambda told: told["type"] == "node" and told["word"] == "back")
        finally:
            watching.end()


@pytest.mark.spec("WATCH-1")
def test_a_server_killed_under_a_watcher(lab: Lab, alice: Person) -> None:
    """Goes on over the other one, and no alert is told twice."""
    with debugged(
        lab,
        alice,
        "-w",
        "n1",
        "--mem=150M",
        wrap="sleep 8; /usr/bin/python3 -c 'x = bytearray(400 << 20)'; sleep 300",
    ) as job:
        watching = Watching(alice, job)
        try:
            watching.until(lambda told: told.get("rule") == "oom_kill")
            lab.servers[0].kill()
            time.sleep(1)
            watching.until(lambda told: told["type"] == "measured")
            for _ in range(3):
                watching.until(lambda told: told["type"] == "measured")
            told = [each["phase"] for each in watching.told if each.get("rule") == "oom_kill"]
            # A node that is away for a moment makes it unknown, and firing again.
            assert all(one != other for one, other in pairwise(told)), told
        finally:
            watching.end()
