"""Folders that Slurm names by a job's unique id: only its daemons say whose they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lattice.helper import jobgroups, process
from lattice.helper.jobgroups import find_job
from lattice.helper.process import is_of_job, step_of
from lattice.helper.unique_ids import job_of_unique_id

JOB, UID = 42, 3001
ID, OTHER_ID = "sDFDM7JZPGD600", "sDFDM7JZPGD601"
SCOPE = "system.slice/n1_slurmstepd.scope"
TITLE = "slurmstepd: [42.batch]"


class Node:
    """Control groups and processes of a node, as files."""

    def __init__(self, folder: Path) -> None:
        self.groups = folder / "cgroup"
        self.proc = folder / "proc"
        self.scope = self.groups / SCOPE
        self.scope.mkdir(parents=True)
        (self.groups / "cgroup.controllers").write_text("cpu memory\n")

    def process(
        self, pid: int, place: str, title: str, uids: str = "0 0 0 0", group: str = ""
    ) -> None:
        """One in that folder; `group` is where the kernel says it is, if elsewhere."""
        folder = self.scope / place
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "cgroup.procs").open("a") as procs:
            procs.write(f"{pid}\n")
        own = self.proc / str(pid)
        own.mkdir(parents=True)
        (own / "cmdline").write_text(title + "\0")
        (own / "status").write_text(f"Name:\tx\nUid:\t{uids.replace(' ', chr(9))}\n")
        (own / "cgroup").write_text(group or f"0::/{SCOPE}/{place}\n")

    def job_of(self, unique_id: str = ID) -> int | None:
        return job_of_unique_id(str(self.scope / unique_id), str(self.proc))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def known(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """The node on which the helper runs."""
    here: Callable[[str], int | None] = lambda folder: job_of_unique_id(folder, str(node.proc))  # noqa: E731
    monkeypatch.setattr(process, "_CONTROL_GROUPS", str(node.groups))
    monkeypatch.setattr(process, "job_of_unique_id", here)
    monkeypatch.setattr(jobgroups, "job_of_unique_id", here)
    return node


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    "title",
    [TITLE, "slurmstepd: [42.0]", f"slurmstepd: [{ID} 42.extern]", f"slurmstepd: [{ID}/42.1]"],
)
def test_the_daemon_of_a_step_says_whose_folder_it_is(node: Node, title: str) -> None:
    assert node.job_of() is None
    node.process(7, f"{ID}/step_batch/slurm", title)
    assert node.job_of() == JOB
    assert node.job_of(OTHER_ID) is None


@pytest.mark.threat("named-cgroup")
@pytest.mark.parametrize(
    ("place", "title", "uids", "group"),
    [
        (f"{ID}/step_batch/user/task_0", TITLE, "0 0 0 0", ""),
        (f"{ID}/step_batch/slurm", TITLE, "3001 3001 3001 3001", ""),
        # A program of a user with root's rights
        (f"{ID}/step_batch/slurm", TITLE, "3001 0 0 0", ""),
        (f"{ID}/step_batch/slurm", "slurmstepd: [.batch]", "0 0 0 0", ""),
        (f"{ID}/step_batch/slurm", f"bash {TITLE}", "0 0 0 0", ""),
        (f"{ID}/step_batch/slurm", TITLE, "0 0 0 0", "0::/user.slice\n"),
        (f"{ID}/step_batch/slurm", TITLE, "0 0 0 0", f"9:freezer:/{SCOPE}/{ID}/step_batch/slurm\n"),
        (f"{ID}/slurm/x", TITLE, "0 0 0 0", ""),
    ],
)
def test_nothing_else_does(node: Node, place: str, title: str, uids: str, group: str) -> None:
    node.process(7, place, title, uids, group)
    assert node.job_of() is None


@pytest.mark.spec("LOG-2")
def test_the_number_stays_known_when_the_daemon_has_ended(node: Node) -> None:
    node.process(7, f"{ID}/step_batch/slurm", TITLE)
    assert node.job_of() == JOB
    (node.scope / ID / "step_batch/slurm/cgroup.procs").write_text("")
    assert node.job_of() == JOB


@pytest.mark.spec("ATTACH-1", "LOG-2")
def test_a_process_and_a_job_are_found_by_it(known: Node) -> None:
    known.process(7, f"{ID}/step_0/slurm", "slurmstepd: [42.0]")
    known.process(8, f"{OTHER_ID}/step_0/slurm", "slurmstepd: [43.0]")
    known.process(9, f"{ID}/step_0/user/task_0", "sleep")
    found = find_job(known.groups, "n1", UID, JOB)
    assert found is not None
    assert found.path == str(known.scope / ID)
    assert [(step.name, step.pids()) for step in found.steps()] == [("0", [9])]
    assert find_job(known.groups, "n1", UID, 44) is None
    cgroups = f"0::/{SCOPE}/{ID}/step_0/user/task_0\n"
    assert is_of_job(cgroups, JOB)
    assert step_of(cgroups, JOB) == "0"
    assert not is_of_job(cgroups, 43)
    assert not step_of(cgroups, 43)


@pytest.mark.threat("named-cgroup")
def test_a_folder_that_a_user_named_so_is_nobodys(known: Node) -> None:
    known.process(7, f"{ID}/step_0/slurm", "slurmstepd: [42.0]")
    for path in (
        f"{SCOPE}/job_7/step_0/user/{ID}",
        f"{SCOPE}/{OTHER_ID}/step_0/user/task_0/{ID}",
        f"user.slice/{ID}/step_0",
        f"{SCOPE}/{ID.lower()}/step_0",
    ):
        assert not is_of_job(f"0::/{path}\n", JOB)
