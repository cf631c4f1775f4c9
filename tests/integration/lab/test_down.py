"""`lab down` works whatever was done to the nodes, and names what the kernel does not let go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from lab.command import LabError
from lab.fixtures import lab_name
from lab.footprint import Footprint
from lab.laboratory import Lab
from lab.layout import Layout
from tests.eventually import eventually
from tests.integration.lab.hung_share import hung_share

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab makes namespaces: it needs root"),
]

_CHECKOUT = Path(__file__).parents[3]
_NAME = lab_name("down")
_UP = """
import sys
from lab.laboratory import Lab
Lab(sys.argv[1], parts=("slurm",)).up(lambda line: print(line, flush=True))
"""

Fault = Callable[[Lab, ExitStack], None]


@pytest.fixture
def own() -> Iterator[Lab]:
    made = Lab(_NAME, parts=("slurm",))
    yield made
    made.down(purge=True)


def down(name: str = _NAME) -> subprocess.CompletedProcess[str]:
    """As a person calls it."""
    return subprocess.run(
        [sys.executable, "-m", "lab", "--name", name, "down"],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


def read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ""


def daemon_stopped_and_continued(lab: Lab, _: ExitStack) -> None:
    pid = lab.node("n1").slurmd.pid
    parent = int(read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: " T " in read(Path(f"/proc/{parent}/stat")))
    os.kill(pid, signal.SIGCONT)


def node_frozen(lab: Lab, _: ExitStack) -> None:
    lab.node("n1").freeze()


def job_suspended_and_its_daemon_killed(lab: Lab, _: ExitStack) -> None:
    job = lab.sbatch("alice", "-w", "n2", wrap="srun sleep 600")
    lab.wait_job_state(job, "RUNNING")
    lab.slurm.scontrol("suspend", str(job))
    lab.node("n2").slurmd.kill()


def job_frozen_by_its_control_group(lab: Lab, _: ExitStack) -> None:
    """As a slurmstepd leaves it that is killed between freezing a step and thawing it."""
    job = lab.sbatch("alice", "-w", "n2", wrap="srun sleep 600")
    lab.wait_job_state(job, "RUNNING")
    folder = Path("/sys/fs/cgroup/freezer") / lab.layout.cgroup("n2")
    eventually(lambda: any(folder.rglob(f"job_{job}/step_0")))
    state = next(folder.rglob(f"job_{job}")) / "freezer.state"
    state.write_text("FROZEN")
    eventually(lambda: state.read_text().strip() == "FROZEN")


def process_hung_in_the_kernel(lab: Lab, stack: ExitStack) -> None:
    node, folder = lab.node("n3"), Path("/home/share")
    (lab.layout.home / folder.name).mkdir(exist_ok=True)
    enter = ["nsenter", "--target", str(node.pid), "--mount"]
    file = stack.enter_context(hung_share(folder, enter))
    reader = subprocess.Popen(node.argv(["cat", str(file)]))
    stack.callback(reader.wait)
    group = Path("/sys/fs/cgroup/unified") / lab.layout.cgroup("n3") / "cgroup.procs"
    eventually(
        lambda: (
            "request_wait_answer"
            in {read(Path(f"/proc/{pid}/wchan")) for pid in read(group).split()}
        )
    )


FAULTS: tuple[Fault, ...] = (
    daemon_stopped_and_continued,
    node_frozen,
    job_suspended_and_its_daemon_killed,
    job_frozen_by_its_control_group,
    process_hung_in_the_kernel,
)


def everything_at_once(lab: Lab, stack: ExitStack) -> None:
    job_frozen_by_its_control_group(lab, stack)
    process_hung_in_the_kernel(lab, stack)
    job_suspended_and_its_daemon_killed(lab, stack)
    daemon_stopped_and_continued(lab, stack)


@pytest.mark.parametrize(
    "fault",
    [*(pytest.param(each, marks=pytest.mark.long) for each in FAULTS), everything_at_once],
)
def test_down_leaves_nothing_after(own: Lab, fault: Fault) -> None:
    own.up()
    with ExitStack() as stack:
        fault(own, stack)
        for _ in range(2):
            done = down()
            assert (done.returncode, done.stderr) == (0, "")
            assert "not in order" not in done.stdout
            assert Footprint.of(own.layout).empty


def test_down_where_there_is_nothing() -> None:
    for _ in range(2):
        done = down(lab_name("nothing"))
        assert (done.returncode, done.stderr) == (0, "")


def test_down_after_half_an_up(own: Lab) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _UP, _NAME], cwd=_CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        assert "control" in starter.stdout.readline()
        eventually((own.layout.processes / "munged.json").exists)
        starter.kill()
    (own.layout.state / "lab.json").write_text('{"parts": ["slu')
    done = down()
    assert (done.returncode, done.stderr) == (0, "")
    assert Footprint.of(own.layout).empty


def test_what_can_not_be_ended_is_named_and_hinders_no_new_lab(tmp_path: Path) -> None:
    lab = Lab(lab_name("stuck"), parts=(), patience_s=1.0)
    lines: list[str] = []
    try:
        # Mounted on the host, and so not the lab's to cut off.
        with hung_share(tmp_path) as file:
            lab.up()
            reader = lab.control.host.popen(["cat", str(file)])
            wait_channel = Path(f"/proc/{reader.pid}/wchan")
            eventually(lambda: read(wait_channel) == "request_wait_answer")
            with pytest.raises(LabError, match=rf"process {reader.pid} \(cat\) is in state D"):
                lab.down()
            left = Footprint.of(lab.layout)
            assert not left.mounts | left.network_namespaces
            assert not left.ports
            assert len(left.processes) == 1
            lab.up(lines.append)
            assert lab.control.holder.alive
        reader.communicate()
    finally:
        lab.down(purge=True)
    assert any("left over" in line and f"process {reader.pid}" in line for line in lines)
    assert Footprint.of(Layout(lab.name)).empty
