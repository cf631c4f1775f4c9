"""With real processes in place of Slurm's commands."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lattice.adapters.slurm import commands
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.base.errors import Unavailable
from tests.eventually import eventually_async


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "hidden")
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_the_command_line_and_environment_are_what_slurm_needs(folder: Path) -> None:
    program(folder, "sacctmgr", 'echo "$@"; env')
    said = await SlurmCommands(Path("/etc/slurm/slurm.conf")).associations("lab; rm -rf /")
    line, *environment = said.splitlines()
    assert line == (
        "-nP show assoc withdeleted format=id,cluster,account,user cluster=lab; rm -rf /"
    )
    assert "SLURM_CONF=/etc/slurm/slurm.conf" in environment
    assert "LC_ALL=C" in environment
    assert not any("SECRET" in each for each in environment)


async def test_a_prefix_goes_before_the_command(folder: Path) -> None:
    program(folder, "scontrol", 'echo "$WHO $@"')
    said = await SlurmCommands(prefix=("env", "WHO=me")).topology()
    assert said == "me show topology\n"


async def test_a_failure_is_unavailable_with_its_words(folder: Path) -> None:
    program(folder, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 3")
    with pytest.raises(Unavailable, match="failed with 3: Unable to contact"):
        await SlurmCommands().topology()


async def test_a_missing_command_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="can't be run"):
        await SlurmCommands().topology()


async def test_a_hanging_command_is_ended_in_time_and_leaves_no_process(folder: Path) -> None:
    program(folder, "scontrol", f"echo $$ > {folder}/pid; exec sleep 60")
    with pytest.raises(Unavailable, match="longer than"):
        await SlurmCommands(timeout_s=2).topology()
    # Empty if the command was ended before it had begun.
    if pid := (folder / "pid").read_text().strip():
        assert not Path(f"/proc/{pid}").exists()


async def test_a_flood_of_output_is_ended(folder: Path) -> None:
    program(folder, "scontrol", "exec yes")
    with pytest.raises(Unavailable, match="more than"):
        await SlurmCommands(limit_bytes=100_000).topology()


async def test_a_child_that_keeps_the_output_open_keeps_nobody_waiting(folder: Path) -> None:
    program(folder, "scontrol", f"sleep 60 & echo $! > {folder}/pid; exit 0")
    with pytest.raises(Unavailable, match="longer than"):
        await SlurmCommands(timeout_s=1).topology()
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


async def test_bytes_that_are_no_text_do_not_break_it(folder: Path) -> None:
    program(folder, "scontrol", r"printf 'SwitchName=\377 Level=0\n'")
    assert "SwitchName=\ufffd" in await SlurmCommands().topology()


async def test_a_cancelled_question_ends_its_process(folder: Path) -> None:
    program(folder, "scontrol", f"echo $$ > {folder}/pid; exec sleep 60")
    task = asyncio.create_task(SlurmCommands().topology())
    pid = folder / "pid"
    await eventually_async(lambda: pid.exists() and pid.read_text())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_no_handler_for_forks_runs_in_a_command(folder: Path) -> None:
    """gRPC has such handlers: of the children that uvloop forks, they killed one in a hundred."""
    (folder / "scontrol").symlink_to("/bin/true")
    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(os.getpid()))
    uvloop.run(SlurmCommands().topology())
    assert not forks


class _ClosedOnce(io.FileIO):
    """A pipe that notices if its descriptor was closed by somebody else."""

    def close(self) -> None:
        if not self.closed:
            os.fstat(self.fileno())
            CLOSED.append(self.fileno())
        super().close()


CLOSED: list[int] = []


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_pipe_is_closed_once_so_that_no_other_file_is_hit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    program(folder, "scontrol", "echo hello")
    start = subprocess.Popen

    def started(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*words, **options)
        assert process.stdout is not None
        descriptor = os.dup(process.stdout.fileno())
        process.stdout.close()
        process.stdout = _ClosedOnce(descriptor)
        return process

    monkeypatch.setattr(commands.subprocess, "Popen", started)
    CLOSED.clear()
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(SlurmCommands().topology()) == "hello\n"
    assert len(CLOSED) == 1
