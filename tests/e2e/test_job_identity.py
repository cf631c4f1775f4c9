"""A job asks its node who it is: every rank and array task for itself, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.files import owned_folder
from lab.laboratory import Lab
from lab.users import AGENT_USER
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

NODES = ("n1", "n2")
RUN = Path(__file__).parents[2] / "packages" / "lattice-run" / "src"
_ASK = """#!/usr/bin/python3
import socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.connect(sys.argv[1] + "/" + sys.argv[2] + ".sock")
asking.sendall(b'{"ask": "self"}\\n')
print(asking.makefile().readline(), end="", flush=True)
"""


@pytest.fixture(scope="module")
def sockets(lab: Lab) -> Iterator[Path]:
    """Agents that let jobs ask: the folder with their sockets."""
    folder = owned_folder(lab.layout.state / "asking", AGENT_USER)
    for name in NODES:
        agent = lab.node(name).agent
        agent.kill()
        agent.changes["jobs"] = {"socket": f"{folder}/{name}.sock"}
        agent.start()
    for name in NODES:
        eventually((folder / f"{name}.sock").is_socket)
    program = folder / "ask"
    program.write_text(_ASK)
    program.chmod(0o755)
    yield folder
    for name in NODES:
        agent = lab.node(name).agent
        agent.kill()
        del agent.changes["jobs"]
        agent.start()


def ask(sockets: Path) -> str:
    """As a command of a job: the agent of the process's own node."""
    return f"{sockets}/ask {sockets} $SLURMD_NODENAME"


def said(lab: Lab, job: int | str) -> list[dict[str, Any]]:
    """What a job wrote into its home, a line of JSON for each question."""
    text = lab.run_as("alice", ["sh", "-c", f"cat said-{job}*"]).stdout
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def run(lab: Lab, *options: str, wrap: str, lines: int) -> list[dict[str, Any]]:
    job = lab.sbatch("alice", "--mem=64", "--output=said-%A-%a", *options, wrap=wrap)
    return eventually(lambda: said(lab, job), lambda found: len(found) >= lines)


def test_every_rank_learns_its_own_allocation(quiet_lab: Lab, alice: Person, sockets: Path) -> None:
    wrap = f"sleep 1; srun sh -c '{ask(sockets)}'"
    answers = run(quiet_lab, "--nodelist=n1,n2", "-n4", "-N2", wrap=wrap, lines=4)
    found = [each["self"] for each in answers]
    assert len({json.dumps(each, sort_keys=True) for each in found}) == 1
    assert (found[0]["user"], found[0]["attempt"], found[0]["nodes"]) == ("alice", 1, "n[1-2]")
    card = alice.card(found[0]["allocation"])["allocation"]
    assert all(found[0][name] == card[name] for name in ("id", "account", "tenant", "name"))
    assert found[0]["state"] == "running"
    assert "token" not in json.dumps(answers)


def test_a_task_of_an_array_and_a_second_attempt(quiet_lab: Lab, sockets: Path) -> None:
    wrap = f"sleep 1; {ask(sockets)}; sleep 60"
    job = quiet_lab.sbatch(
        "alice", "--mem=64", "--nodelist=n1", "--output=said-%A-%a-x", "--open-mode=append",
        "--requeue", "--array=7", wrap=wrap,
    )  # fmt: skip
    (first,) = eventually(lambda: said(quiet_lab, job), lambda found: len(found) == 1)
    assert (first["self"]["id"], first["self"]["attempt"]) == (f"{job}_7", 1)
    quiet_lab.ctl(["scontrol", "requeue", str(job)])
    quiet_lab.start_requeued(job)
    both = eventually(lambda: said(quiet_lab, job), lambda found: len(found) == 2)
    assert (both[1]["self"]["id"], both[1]["self"]["attempt"]) == (f"{job}_7", 2)
    assert both[1]["self"]["allocation"] == first["self"]["allocation"]


def test_whoever_is_in_no_job_learns_nothing(quiet_lab: Lab, sockets: Path) -> None:
    quiet_lab.sbatch("alice", "--mem=64", "--nodelist=n1", wrap="sleep 60")
    for user in ("alice", "bob"):
        node = quiet_lab.node("n1")
        out = node.run([f"{sockets}/ask", str(sockets), "n1"], user=user).stdout
        assert json.loads(out)["error"]["code"] == "not_found"


def test_a_job_can_not_ask_the_agent_of_another_node(quiet_lab: Lab, sockets: Path) -> None:
    """All rooms of the lab share the sockets' folder; that agent sees no such process in a job."""
    wrap = f"sleep 1; {sockets}/ask {sockets} n2"
    (answer,) = run(quiet_lab, "--nodelist=n1", wrap=wrap, lines=1)
    assert answer["error"]["code"] == "not_found"


def report(sockets: Path, text: str, node: str = "$SLURMD_NODENAME") -> str:
    """As a command of a job: `lattice-run` of this source, with any Python."""
    return (
        f"LATTICE_JOB_SOCKET={sockets}/{node}.sock PYTHONPATH={RUN} "
        f"/usr/bin/python3 -m lattice_run event '{text}' --name mark loss=0.5"
    )


def reported(alice: Person, job: int) -> list[tuple[str, str]]:
    found = alice.asks("timeline", str(job))["events"]
    return sorted((each["node"], each["text"]) for each in found if each["kind"] == "job")


def test_what_ranks_report_stands_on_the_timeline_also_after_the_end(
    quiet_lab: Lab, alice: Person, bob: Person, sockets: Path
) -> None:
    each_rank = report(sockets, "epoch 1 done", "\\$SLURMD_NODENAME")
    elsewhere = report(sockets, "from elsewhere", "n2")
    wrap = f'sleep 2; srun -N2 -n2 sh -c "{each_rank}"; {elsewhere}; sleep 600'
    job = quiet_lab.sbatch("alice", "--mem=64", "--nodelist=n1,n2", "-N2", wrap=wrap)
    other = quiet_lab.sbatch("alice", "--mem=64", "--nodelist=n1", wrap="sleep 600")
    wanted = [(node, "epoch 1 done (loss 0.5)") for node in NODES]
    eventually(lambda: reported(alice, job), lambda found: found == wanted, pause_s=0.5)
    assert reported(alice, other) == []
    assert bob.tries("timeline", str(job)).code == 102
    quiet_lab.run_as("alice", ["scancel", str(job), str(other)])
    quiet_lab.wait_job_state(job, "CANCELLED")
    assert reported(alice, job) == wanted


def test_a_lock_ends_it_at_once(quiet_lab: Lab, olga: Person, sockets: Path) -> None:
    wrap = f"for each in $(seq 60); do {ask(sockets)}; sleep 1; done"
    job = quiet_lab.sbatch("alice", "--mem=64", "--nodelist=n1", "--output=said-%A-%a", wrap=wrap)
    eventually(lambda: said(quiet_lab, job), lambda found: any("self" in each for each in found))
    assert olga.tries("admin", "lock", "user", "alice", "--reason", "stolen laptop").code == 0
    try:
        found = eventually(lambda: said(quiet_lab, job), lambda found: "error" in found[-1])
        assert found[-1]["error"]["code"] == "permission_refused"
        assert "stolen laptop" in found[-1]["error"]["message"]
    finally:
        assert olga.tries("admin", "unlock", "user", "alice").code == 0
    eventually(lambda: said(quiet_lab, job), lambda found: "self" in found[-1])


@pytest.fixture
def olga(lab: Lab) -> Person:
    return administrator(lab)
