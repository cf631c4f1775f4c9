"""A file a task: nothing of it is lost when nobody could look while it was written.

Only the processes that hold such a file tell where it is. The agents, or all servers, are away
while tasks write and end; what the helper noted leads to the files afterwards.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.laboratory import Lab
from tests.e2e.log_lines import Gate, numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

NODES = ("n1", "n2")


@pytest.fixture(autouse=True)
def as_before(quiet_lab: Lab) -> Iterator[None]:
    """Whatever a story did to agents and servers."""
    yield
    for server in quiet_lab.servers:
        server.process.up()
    for name in NODES:
        quiet_lab.node(name).agent.start()


def records(alice: Person, job: int) -> list[dict[str, Any]]:
    said = alice.tries("logs", str(job), "-o", "json")
    return [json.loads(line) for line in said.out.splitlines()] if said.code == 0 else []


def lines_by_rank(alice: Person, job: int, writer: str) -> dict[int, list[int]]:
    """The numbers that each rank wrote, in the order they stand; a line's rank is its file's."""
    found: dict[int, list[int]] = {}
    for each in records(alice, job):
        if each["type"] != "line" or each.get("rank") is None:
            continue
        assert f" {writer}.{each['rank']} " in each["text"] or f" {writer}." not in each["text"]
        found.setdefault(each["rank"], []).extend(numbers([each["text"]], writer))
    return {rank: seen for rank, seen in found.items() if seen}


def text_of(lab: Lab, job: int, rank: int) -> list[str]:
    file = lab.layout.home / "alice" / f"f{job}-{rank}.out"
    return file.read_text().splitlines() if file.exists() else []


def stored(lab: Lab, job: int) -> None:
    """Nothing of the job waits on a node any more."""
    folders = [lab.node(name).agent.folder / "state" / "logs" for name in NODES]
    eventually(
        lambda: [each for folder in folders for each in folder.glob(f"{job}-*")],
        lambda left: not left,
    )


@pytest.mark.spec("LOG-2", "LOG-3")
@pytest.mark.long
def test_agents_away_while_tasks_end(quiet_lab: Lab, alice: Person) -> None:
    """Two nodes with two tasks each: killed in the middle, started when all is over."""
    even = ("-N2", "-n4", "--ntasks-per-node=2")
    task = script("t", 400, pause_s=0.02)
    step = f"srun {' '.join(even)} --output=f%j-%t.out {task}"
    job = quiet_lab.sbatch("alice", "-w", "n1,n2", *even, wrap=step)
    quiet_lab.wait_job_state(job, "RUNNING")
    seen = eventually(
        lambda: lines_by_rank(alice, job, "t"),
        lambda found: len(found) == 4 and all(len(each) > 20 for each in found.values()),
    )
    agents = [quiet_lab.node(name).agent for name in NODES]
    for agent in agents:
        agent.kill()
    written = [len(text_of(quiet_lab, job, rank)) for rank in range(4)]
    assert all(count < 400 for count in written), "the tasks ended before the agents did"
    quiet_lab.wait_job_state(job, "COMPLETED", timeout_s=120)
    assert [len(text_of(quiet_lab, job, rank)) for rank in range(4)] == [400] * 4
    time.sleep(1)
    for agent in agents:
        agent.start()
    wanted = {rank: list(range(400)) for rank in range(4)}
    eventually(lambda: lines_by_rank(alice, job, "t"), lambda found: found == wanted)
    stored(quiet_lab, job)
    assert lines_by_rank(alice, job, "t") == wanted
    assert not [each for each in records(alice, job) if each["type"] == "gap"]
    assert all(len(each) < 400 for each in seen.values())


@pytest.mark.spec("LOG-2", "LOG-3")
@pytest.mark.long
def test_servers_away_while_short_steps_come_and_go(quiet_lab: Lab, alice: Person) -> None:
    """Nobody can say that the files may be opened; everything is there when somebody can."""
    tasks = script("s", 40, pause_s=0.025)
    steps = "; ".join(f"srun -n2 --output=f%j-{step}-%t.out {tasks}" for step in range(3))
    for server in quiet_lab.servers:
        server.process.kill()
    job = quiet_lab.sbatch("alice", "-w", "n1", "-n2", wrap=f"{steps}; {script('b', 20)}")
    home = quiet_lab.layout.home / "alice"
    eventually(
        lambda: numbers(_lines(home / f"slurm-{job}.out"), "b"), lambda seen: len(seen) == 20
    )
    time.sleep(3)
    for server in quiet_lab.servers:
        server.process.up()
    wanted = {rank: list(range(40)) * 3 for rank in range(2)}
    eventually(
        lambda: {rank: sorted(seen) for rank, seen in lines_by_rank(alice, job, "s").items()},
        lambda found: found == {rank: sorted(seen) for rank, seen in wanted.items()},
    )
    stored(quiet_lab, job)
    lines = [each for each in records(alice, job) if each["type"] == "line"]
    batch = [each["text"] for each in lines if each["source"] == "batch"]
    assert numbers(batch, "b") == list(range(20))
    steps_seen = {each["source"] for each in lines} - {"batch"}
    assert steps_seen == {f"{step}.{rank}" for step in range(3) for rank in range(2)}


@pytest.mark.spec("LOG-3")
def test_a_file_that_is_gone_when_the_agent_is_back_is_a_gap(quiet_lab: Lab, alice: Person) -> None:
    """What had been read is there, and that the rest is not is said."""
    gate = Gate(quiet_lab)
    lines = f"{script('g', 100)}; {gate.wait}; {script('h', 100)}"
    job = quiet_lab.sbatch(
        "alice", "-w", "n1",
        wrap=f"srun -n1 --output=f%j-%t.out sh -c {shlex.quote(lines)}",
    )  # fmt: skip
    quiet_lab.wait_job_state(job, "RUNNING")
    eventually(lambda: lines_by_rank(alice, job, "g"), lambda found: len(found.get(0, [])) == 100)
    agent = quiet_lab.node("n1").agent
    agent.kill()
    gate.open()
    quiet_lab.wait_job_state(job, "COMPLETED", timeout_s=120)
    (quiet_lab.layout.home / "alice" / f"f{job}-0.out").unlink()
    agent.start()
    told = eventually(lambda: [each for each in records(alice, job) if each["type"] == "gap"], bool)
    assert [(each["cause"], each["source"]) for each in told] == [("unreadable", "0.0")]
    assert lines_by_rank(alice, job, "g") == {0: list(range(100))}
    assert lines_by_rank(alice, job, "h") == {}
    stored(quiet_lab, job)


@pytest.mark.spec("LOG-2")
@pytest.mark.long
def test_labelled_lines_have_ranks(quiet_lab: Lab, alice: Person) -> None:
    """Written by srun in one file, by slurmstepd in one a task; the script's `3: x` is nobody's."""
    even = "-N2 -n4 --ntasks-per-node=2"
    # Long enough to be seen in slurmstepd's hands twice, some seconds apart, on a slow machine too.
    count, task = 240, script("l", 240, pause_s=0.05)
    together = f"srun {even} --label --output=f%j-every.out {task}"
    apart = f"srun {even} -l --output=f%j-%t.out {task}"
    said = "echo '3: of the script'"
    job = quiet_lab.sbatch(
        "alice", "-w", "n1,n2", *even.split(), wrap=f"{said}; {together}; {apart}; {said}"
    )
    eventually(
        lambda: {each.get("rank") for each in records(alice, job)},
        lambda seen: seen >= {0, 1, 2, 3},
    )
    quiet_lab.wait_job_state(job, "COMPLETED", timeout_s=180)
    stored(quiet_lab, job)
    lines = [each for each in records(alice, job) if each["type"] == "line"]
    script_s = [each for each in lines if each["text"] == "3: of the script"]
    assert [(each["source"], each["rank"]) for each in script_s] == [("batch", None)] * 2
    found: dict[tuple[int, str], list[int]] = {}
    for each in lines:
        label, _, text = each["text"].partition(": ")
        if f" l.{label} " in text:
            assert each["rank"] == int(label), each
            step = "srun" if each["source"].startswith("batch") else "slurmstepd"
            found.setdefault((each["rank"], step), []).extend(numbers([text], "l"))
    assert found == {
        (rank, step): list(range(count)) for rank in range(4) for step in ("srun", "slurmstepd")
    }
    chosen = alice.tries("logs", str(job), "-o", "json", "--rank", "3").out.splitlines()
    ranks = [told["rank"] for told in map(json.loads, chosen) if told["type"] == "line"]
    assert ranks == [3] * 2 * count


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
