"""A process handle means one process for ever, whatever the kernel does with pids."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cgroup import ControlGroup, Hierarchies
from lab.command import LabError
from lab.identity import Identity, boot_id
from lab.layout import MARKER, Layout
from lab.process import Process
from lab.room import Room
from tests.eventually import eventually

pytestmark = pytest.mark.lab

_TICKS = 'while :; do echo tick >>"$1"; sleep 0.02; done'


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout("handles", base=tmp_path)
    made.make_folders()
    return made


@pytest.fixture
def room() -> Iterator[Room]:
    group = ControlGroup(Hierarchies.of_host(), Layout("handles").cgroup(), everywhere=False)
    group.create()
    yield Room(group, {"PATH": os.environ["PATH"], MARKER: "handles"})
    group.remove()


def test_a_recycled_pid_is_never_signalled(layout: Layout, room: Room) -> None:
    process = Process("gone", ["true"], layout, room)
    with subprocess.Popen(["sleep", "60"]) as innocent:
        now = Identity.of(innocent.pid)
        earlier = {"pid": now.pid, "start_ticks": now.start_ticks - 1, "boot": now.boot}
        other_boot = {"pid": now.pid, "start_ticks": now.start_ticks, "boot": "another"}
        for stale in (earlier, other_boot):
            (layout.processes / "gone.json").write_text(json.dumps(stale))
            assert process.condition == "dead"
            with pytest.raises(LabError):
                process.freeze()
            process.stop()
            process.kill()
            assert innocent.poll() is None
            assert Identity.of(innocent.pid).state() in {"R", "S", "D"}
        innocent.kill()


def test_another_program_has_the_same_handle(layout: Layout, room: Room) -> None:
    mine = Process("shared", ["sleep", "600"], layout, room)
    mine.start()
    theirs = Process("shared", ["sleep", "600"], layout, room)
    assert theirs.pid == mine.pid
    with pytest.raises(LabError, match="running already"):
        theirs.start()
    theirs.stop()
    assert mine.condition == "absent"
    theirs.stop()


def test_frozen_stands_still_and_thawed_goes_on(layout: Layout, room: Room, tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    process = Process("clock", ["sh", "-c", _TICKS, "clock", str(ticks)], layout, room)
    process.start()
    process.wait_healthy(ticks.exists)
    process.freeze()
    eventually(lambda: process.condition == "frozen")
    before = ticks.stat().st_size
    time.sleep(0.3)
    assert ticks.stat().st_size == before
    process.thaw()
    eventually(lambda: ticks.stat().st_size > before)
    process.freeze()
    process.stop()  # SIGTERM reaches a frozen process as well
    assert process.condition == "absent"


def test_who_ignores_sigterm_is_killed_after_the_grace(layout: Layout, room: Room) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 600; done"
    process = Process("stubborn", ["sh", "-c", stubborn], layout, room, grace_s=0.3)
    process.start()
    process.wait_healthy(lambda: process.log_file.read_text() != "")
    identity = process.identity
    process.stop()
    assert identity is not None
    assert not identity.alive


def test_a_process_that_ends_while_starting_says_what_it_said(layout: Layout, room: Room) -> None:
    argv = ["sh", "-c", "echo no such luck >&2; exit 3"]
    process = Process("brief", argv, layout, room)
    process.start()
    with pytest.raises(LabError, match="no such luck"):
        process.wait_healthy(lambda: False)
    assert process.condition == "dead"


def test_a_daemon_does_not_keep_the_callers_lock(
    layout: Layout, room: Room, tmp_path: Path
) -> None:
    process = Process("unlocked", ["sleep", "600"], layout, room)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        process.start()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    process.stop()


def test_the_record_names_this_boot(layout: Layout, room: Room) -> None:
    process = Process("noted", ["sleep", "600"], layout, room)
    process.start()
    record = json.loads((layout.processes / "noted.json").read_text())
    assert record == {
        "pid": process.pid,
        "start_ticks": Identity.of(process.pid).start_ticks,
        "boot": boot_id(),
    }
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: process.condition == "dead")
    process.stop()
