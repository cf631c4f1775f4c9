"""Every process of a control group ends: stopped, frozen or hung; what can't end is named."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from lab.cgroup import ControlGroup, Hierarchies
from lab.fixtures import lab_name
from lab.identity import Identity
from lab.layout import MARKER, Layout
from lab.process import Process
from lab.room import SYSTEM_PATH, Room
from lab.teardown import end_all
from tests.eventually import eventually
from tests.integration.lab.hung_share import hung_share

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and control groups need root"),
]

_ASKING = "request_wait_answer"
"""Where the kernel waits for the server of a FUSE share."""
_WAIT_FOR_EVER = "exec 3<> <(:); while :; do read -r -u 3 || :; done"
_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc")


class Machine:
    """A node without Slurm: a pid namespace, and a daemon that was entered into it."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(lab_name("machine"), base=folder)
        self.layout.make_folders()
        self.hierarchies = Hierarchies.of_host()
        self.group = ControlGroup(self.hierarchies, self.layout.cgroup("n1"), everywhere=True)
        environment = {"PATH": SYSTEM_PATH, MARKER: self.layout.name}
        outside = Room(self.group, environment, forks=True)
        argv = [*_NAMESPACE, "bash", "-c", _WAIT_FOR_EVER]
        self.init = Process("init", argv, self.layout, outside)
        inside = Room(self.group, environment, self.enter, forks=True)
        self.daemon = Process("daemon", ["sleep", "1000"], self.layout, inside)

    def enter(self, *which: str) -> list[str]:
        return ["nsenter", "--target", str(self.init.pid), *(which or ("--all",))]

    def start(self) -> None:
        self.group.create()
        self.init.up()
        self.daemon.up()
        eventually(lambda: name_of(self.daemon.pid) == "sleep")

    def popen(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        return Room(self.group, {"PATH": SYSTEM_PATH}, self.enter, forks=True).popen(argv)

    def end(self) -> None:
        self.group.remove()
        self.init.forget()
        self.daemon.forget()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.end()


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def waits_in(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text()
    return ""


def stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent_of(process: Process) -> Identity:
    return Identity.of(int(stat_of(process.pid)[1]))


def stopped(machine: Machine) -> None:
    """`nsenter` stops itself when what it entered is stopped, and then collects nothing."""
    os.kill(machine.daemon.pid, signal.SIGSTOP)
    eventually(lambda: parent_of(machine.daemon).state() == "T")


def stopped_and_continued(machine: Machine) -> None:
    stopped(machine)
    os.kill(machine.daemon.pid, signal.SIGCONT)
    eventually(lambda: machine.daemon.condition == "running")
    assert parent_of(machine.daemon).state() == "T"


def frozen(machine: Machine) -> None:
    machine.group.freeze()


def frozen_by_v1(machine: Machine) -> None:
    """What slurmstepd leaves when it is killed while it signals a step."""
    path = machine.layout.cgroup("n1")
    (freezer,) = (
        root / path for root in machine.hierarchies.v1 if (root / path / "freezer.state").exists()
    )
    below = freezer / "job"
    below.mkdir()
    (below / "cgroup.procs").write_text(str(machine.daemon.pid))
    (below / "freezer.state").write_text("FROZEN")
    eventually(lambda: (below / "freezer.state").read_text().strip() == "FROZEN")


def killed(machine: Machine) -> None:
    machine.daemon.kill()


@pytest.mark.parametrize("fault", [stopped, stopped_and_continued, frozen, frozen_by_v1, killed])
def test_a_machine_ends_after(machine: Machine, fault: Callable[[Machine], None]) -> None:
    first = machine.init.identity
    assert first is not None
    fault(machine)
    assert end_all(machine.group) == []
    assert not first.alive
    assert machine.group.pids() == []


def test_a_machine_ends_while_a_process_waits_for_a_share_that_never_answers(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    with (
        hung_share(folder, machine.enter("--mount")) as file,
        machine.popen(["cat", str(file)]) as reader,
    ):
        eventually(lambda: _ASKING in map(waits_in, machine.group.pids()))
        assert end_all(machine.group) == []
        reader.wait()
        for stream in (reader.stdout, reader.stderr):
            assert stream is not None
            stream.close()


def test_what_can_not_be_ended_is_named_with_its_state_and_wait_channel(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    # Mounted where this program is: somebody else's share, which must not be cut off.
    with hung_share(folder) as file:
        room = Room(machine.group, {"PATH": SYSTEM_PATH})
        reader = room.popen(["cat", str(file)])
        eventually(lambda: waits_in(reader.pid) == _ASKING)
        (survivor,) = end_all(machine.group, patience_s=1.0, outside_later_s=0.2)
    reader.communicate()
    assert (survivor.pid, survivor.name, survivor.state) == (reader.pid, "cat", "D")
    assert str(survivor).startswith(f"process {reader.pid} (cat) is in state D")
    assert str(survivor).endswith(f"waiting in {_ASKING}")
    assert end_all(machine.group) == []


def test_who_does_not_collect_an_ended_process_is_named(machine: Machine) -> None:
    # A parent outside the lab, as a debugger would be.
    with subprocess.Popen([*machine.enter("--pid"), "sleep", "1000"]) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        eventually(lambda: bool(children.read_text().split()))
        parent.send_signal(signal.SIGSTOP)
        first = machine.init.pid
        survivors = end_all(machine.group, patience_s=1.0, outside_later_s=0.2)
        parent.send_signal(signal.SIGCONT)
    channels = {each.pid: each.waits_in for each in survivors}
    assert channels[first] == "zap_pid_ns_processes"
    (ended,) = (each for each in survivors if each.state == "Z")
    assert ended.parent == parent.pid
    assert end_all(machine.group) == []
