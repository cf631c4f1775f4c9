"""A lab comes and goes without a trace, however it went, and beside another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.footprint import Footprint
from lab.identity import Identity
from lab.laboratory import Lab
from lab.layout import Layout

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(300)]

_CHECKOUT = Path(__file__).parents[3]
_PARTS = ("slurm", "oidc", "etcd", "victoriametrics", "seaweedfs")


@pytest.fixture
def one() -> Iterator[Lab]:
    lab = Lab("one", parts=_PARTS)
    yield lab
    lab.down(purge=True)


@pytest.fixture
def two() -> Iterator[Lab]:
    lab = Lab("two", parts=("slurm", "etcd"))
    yield lab
    lab.down(purge=True)


def test_down_leaves_nothing(one: Lab) -> None:
    one.up()
    job = one.sbatch("alice", "-N3", wrap="srun sleep 600")
    one.wait_job_state(job, "RUNNING")
    # Somebody who wants to stay: no parent, no terminal, no marker in the environment.
    stay = ["sh", "-c", "env -i setsid -f sleep 611 >/dev/null 2>&1"]
    one.run_as("alice", stay, check=True)
    one.node("n1").run(stay)
    during = Footprint.of(one.layout)
    assert len([process for process in during.processes if "sleep 611" in process]) == 2
    assert len(during.network_namespaces) == 4
    assert during.control_groups
    assert during.ports == set()

    one.down()
    assert Footprint.of(one.layout).empty
    one.down()
    assert Footprint.of(one.layout).empty

    one.down(purge=True)
    assert not one.layout.state.exists()
    assert not any(path.exists() for path in Path("/sys/fs/cgroup").glob("*/lattice-lab/one"))


@pytest.mark.parametrize(
    "after",
    [
        pytest.param("control", marks=pytest.mark.long),
        pytest.param("etcd", marks=pytest.mark.long),
        "lab",
    ],
)
def test_a_killed_lab_is_cleared_by_the_next_up(one: Lab, after: str) -> None:
    program = (
        "import sys; from lab.laboratory import Lab; "
        f"Lab('one', parts={_PARTS!r}).up(lambda line: print(line, flush=True)); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=_CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        for line in starter.stdout:
            if line.split()[2] == after:
                break
        else:
            pytest.fail(f"the starter never told of {after}")
        starter.kill()
    left = [process.identity for process in one.processes if process.alive]
    assert left

    one.up()
    assert not any(identity.alive for identity in left if identity is not None)
    job = one.sbatch("alice", wrap="true")
    one.wait_job_state(job, "COMPLETED")
    one.down()
    assert Footprint.of(one.layout).empty


@pytest.mark.long
def test_two_labs_side_by_side(one: Lab, two: Lab) -> None:
    one.up()
    two.up()
    jobs = {lab: lab.sbatch("alice", "-w", "n1", wrap="sleep 600") for lab in (one, two)}
    for lab, job in jobs.items():
        lab.wait_job_state(job, "RUNNING")
        groups = lab.node("n1").run(["ls", "/sys/fs/cgroup/freezer"]).stdout
        assert "slurm_n1" in groups
        assert "lattice-lab" not in groups
    assert jobs[one] == jobs[two]
    (one.layout.home / "alice" / "only-here").touch()
    seen = [lab.run_as("alice", ["ls"]).stdout for lab in (one, two)]
    assert ["only-here" in text for text in seen] == [True, False]

    one.down()
    assert two.jobs.states(jobs[two]) == ["RUNNING"]
    assert all(process.condition == "running" for process in two.processes)
    two.down()
    assert Footprint.of(one.layout).empty
    assert Footprint.of(two.layout).empty


def test_names_that_would_meet_another_lab_or_escape_the_folder_are_refused() -> None:
    for name in ("", "a-b", "../x", "A", "a" * 17):
        with pytest.raises(Exception, match="name"):
            Layout(name)


def test_nothing_is_signalled_that_is_not_the_labs_own(one: Lab) -> None:
    environment = {**os.environ, "LATTICE_LAB": "onemore"}
    with subprocess.Popen(["sleep", "600"], env=environment) as bystander:
        one.up()
        one.down()
        assert Identity.of(bystander.pid).alive
        bystander.send_signal(signal.SIGKILL)
