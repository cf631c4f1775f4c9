"""Who is at the other end: the kernel's word, and only folders that Slurm made."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.adapters.linux import caller as module
from lattice.adapters.linux.caller import CallerUnknown, CallingProcess, caller_of, job_of_caller
from lattice.domain.nodejobs import JobFolder, JobIdentity, NodeJob, StartSign

ROOT = Path("/sys/fs/cgroup")
V1 = NodeJob(
    identity=JobIdentity("boot", 12, 1, 1000.0),
    started_by=StartSign.FOLDER,
    uid=1000,
    folders=(
        JobFolder("freezer", f"{ROOT}/freezer/slurm_n1/uid_1000/job_12"),
        JobFolder("cpu,cpuacct", f"{ROOT}/cpu,cpuacct/slurm_n1/uid_1000/job_12"),
    ),
)
_HANDS_ON = """
import socket, sys
made = socket.socket(socket.AF_UNIX)
made.connect(sys.argv[1])
other = socket.socket(fileno=int(sys.argv[2]))
socket.send_fds(other, [b"x"], [made.fileno()])
"""
"""Connects, hands the connection on, and ends."""
SCOPE = "/system.slice/n1_slurmstepd.scope"
V2 = replace(V1, folders=(JobFolder("", f"{ROOT}{SCOPE}/sDFDM7JZPGD600"),))
HYBRID = replace(V1, folders=(JobFolder("", f"{ROOT}/unified{SCOPE}/job_12"),))


@contextmanager
def connected(folder: Path) -> Iterator[tuple[socket.socket, Path]]:
    """A socket that listens, and its path."""
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield listening, path


def connect(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    return made


def without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a kernel before 6.5."""
    monkeypatch.setattr(module, "_of_peer", lambda _: None)


@pytest.mark.parametrize("older", [False, True])
def test_the_process_that_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    if older:
        without_descriptors(monkeypatch)
    with connected(tmp_path) as (listening, path), connect(path), listening.accept()[0] as taken:
        found = caller_of(taken)
    assert (found.pid, found.uid) == (os.getpid(), os.getuid())
    assert found.cgroup == Path("/proc/self/cgroup").read_text()


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.threat("job-socket")
def test_a_connection_that_was_handed_on_is_not_that_of_its_new_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    if older:
        without_descriptors(monkeypatch)
    ours, theirs = socket.socketpair()
    with connected(tmp_path) as (listening, path), ours, theirs:
        words = (sys.executable, "-c", _HANDS_ON, str(path), str(theirs.fileno()))
        subprocess.run(words, pass_fds=(theirs.fileno(),), check=True, timeout=60)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        with listening.accept()[0] as taken, pytest.raises(CallerUnknown):
            caller_of(taken)
        os.close(descriptors[0])


def test_a_number_of_somebody_else_is_refused_on_older_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_descriptors(monkeypatch)
    proc = tmp_path / "proc"
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / str(os.getpid()) / "cgroup").write_text("0::/\n")
    os.chown(proc / str(os.getpid()), os.getuid() + 1, -1)
    with (
        connected(tmp_path) as (listening, path),
        connect(path),
        listening.accept()[0] as taken,
        pytest.raises(CallerUnknown, match="is not the one"),
    ):
        caller_of(taken, proc)


@pytest.mark.parametrize(
    ("job", "cgroup"),
    [
        (V1, "6:freezer:/slurm_n1/uid_1000/job_12/step_0/task_0\n0::/\n"),
        (V1, "6:freezer:/slurm_n1/uid_1000/job_12\n4:memory:/elsewhere\n"),
        (V2, f"0::{SCOPE}/sDFDM7JZPGD600/step_3/user/task_1\n"),
        (HYBRID, f"1:name=systemd:/\n0::{SCOPE}/job_12/step_0\n"),
    ],
)
def test_a_process_is_in_the_job_whose_folder_it_is_below(job: NodeJob, cgroup: str) -> None:
    assert job_of_caller(CallingProcess(7, 1000, cgroup), [job], ROOT) is job


@pytest.mark.parametrize(
    ("job", "cgroup"),
    [
        (V1, ""),
        (V1, "nonsense\n::\n"),
        (V1, "6:freezer:/\n"),
        (V1, "6:freezer:/slurm_n1/uid_1000/job_123/step_0\n"),
        (V1, "6:freezer:/user/slurm_n1/uid_1000/job_12/step_0\n"),
        # Another hierarchy than the one that decides.
        (V1, "7:cpu,cpuacct:/slurm_n1/uid_1000/job_12/step_0\n6:freezer:/\n"),
        (V1, "0::/slurm_n1/uid_1000/job_12/step_0\n"),
        # A folder that a person made below a step of another job.
        (V2, f"0::{SCOPE}/sAAAAAAAAAAA00/step_0/user{SCOPE}/sDFDM7JZPGD600\n"),
        (V2, f"0::{SCOPE}/sDFDM7JZPGD6001/step_0\n"),
    ],
)
@pytest.mark.threat("job-socket")
def test_a_name_alone_is_no_proof(job: NodeJob, cgroup: str) -> None:
    assert job_of_caller(CallingProcess(7, 1000, cgroup), [job], ROOT) is None
