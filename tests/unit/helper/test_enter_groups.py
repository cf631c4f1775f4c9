"""A job's control groups on trees of every kind, hostile ones too."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lattice.helper.jobgroups import find_job, has_steps, leave_guests

UID, JOB = 3001, 42


def group(folder: Path, *pids: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return folder


def v1(root: Path, base: str = "slurm_n1", *, hierarchies: tuple[str, ...] = ("freezer",)) -> None:
    for hierarchy in hierarchies:
        job = root / hierarchy / base / f"uid_{UID}" / f"job_{JOB}"
        group(job, 1)
        group(job / "step_batch", 20, 21)
        group(job / "step_10", 11)
        group(job / "step_2", 9, 7)
        group(job / "step_extern", 2)
        if hierarchy != "freezer":
            group(job / "step_extern" / "task_3", 2)
            group(job / "step_extern" / "task_12")


def v2(root: Path, scope: str = "slurmstepd.scope", parent: str = "system.slice") -> Path:
    root.mkdir(exist_ok=True)
    (root / "cgroup.controllers").write_text("cpu memory\n")
    job = root / parent / scope / f"job_{JOB}"
    group(job / "step_0" / "slurm", 1)
    group(job / "step_0" / "user" / "task_0", 8)
    group(job / "step_0" / "user" / "task_1", 9)
    group(job / "step_0" / "user" / "task_special")
    group(job / "step_extern" / "slurm", 2)
    group(job / "step_extern" / "user" / "task_1", 3)
    return job


@pytest.mark.spec("ATTACH-1")
def test_on_v1_the_freezer_tells_and_every_hierarchy_is_joined(tmp_path: Path) -> None:
    v1(tmp_path, hierarchies=("memory", "freezer", "cpuacct"))
    (tmp_path / "cpu").symlink_to("cpuacct")
    found = find_job(tmp_path, "n1", UID, JOB)
    assert found is not None
    assert [folder.hierarchy for folder in found.folders] == ["freezer", "memory", "cpuacct"]
    place = f"slurm_n1/uid_{UID}/job_{JOB}/step_extern"
    assert found.guests == (
        f"{tmp_path}/freezer/{place}",
        f"{tmp_path}/memory/{place}/task_3",
        f"{tmp_path}/cpuacct/{place}/task_3",
    )
    assert [(step.name, step.pids()) for step in found.steps()] == [
        ("2", [7, 9]),
        ("10", [11]),
        ("batch", [20, 21]),
    ]
    assert found.anchors() == [2]


def test_the_daemon_of_this_node_comes_before_one_without_a_name(tmp_path: Path) -> None:
    v1(tmp_path, "slurm")
    assert find_job(tmp_path, "n1", UID, JOB) is not None
    v1(tmp_path, "slurm_n1")
    found = find_job(tmp_path, "n1", UID, JOB)
    assert found is not None
    assert "/slurm_n1/" in found.path
    v1(tmp_path, "slurm_n2")
    found = find_job(tmp_path, "n2", UID, JOB)
    assert found is not None
    assert "/slurm_n2/" in found.path


@pytest.mark.spec("ATTACH-1")
@pytest.mark.parametrize("scope", ["slurmstepd.scope", "n1_slurmstepd.scope"])
@pytest.mark.parametrize("parent", ["system.slice", "."])
def test_on_v2_tasks_are_below_user(tmp_path: Path, scope: str, parent: str) -> None:
    v2(tmp_path, scope, parent)
    found = find_job(tmp_path, "n1", UID, JOB)
    assert found is not None
    assert found.guests == (f"{found.path}/step_extern/user/task_1",)
    assert [(step.name, step.pids()) for step in found.steps()] == [("0", [8, 9])]
    assert found.anchors() == [3]


def without_extern_task(root: Path) -> Path:
    """As Slurm 26.05 makes it: no task runs in the extern step."""
    job = v2(root)
    task = job / "step_extern" / "user" / "task_1"
    (task / "cgroup.procs").unlink()
    task.rmdir()
    return job


@pytest.mark.spec("ATTACH-1")
def test_on_v2_without_a_task_guests_have_a_folder_of_their_own(tmp_path: Path) -> None:
    job = without_extern_task(tmp_path)
    found = find_job(tmp_path, "n1", UID, JOB)
    assert found is not None
    assert found.guests == (f"{job}/step_extern/user/task_special",)
    assert (found.anchors(), found.extern_daemons()) == ([], [2])


@pytest.mark.spec("ATTACH-1")
def test_the_last_guest_removes_the_folder_and_what_slurm_left_around_it(tmp_path: Path) -> None:
    job = without_extern_task(tmp_path)
    guests = job / "step_extern" / "user" / "task_special"
    guests.mkdir()
    assert leave_guests(str(guests))
    assert not guests.exists()
    assert (job / "step_extern" / "user").is_dir(), "Slurm's daemon is there"
    assert leave_guests(str(guests)), "it is gone already"

    over = tmp_path / "s6XDM7R8EC5Z00" / "step_extern" / "user" / "task_special"
    over.mkdir(parents=True)
    assert leave_guests(str(over))
    assert not (tmp_path / "s6XDM7R8EC5Z00").exists()


def test_a_folder_with_a_process_or_of_slurm_s_own_stays(tmp_path: Path) -> None:
    guests = tmp_path / "step_extern" / "user" / "task_special"
    group(guests / "inside")
    assert not leave_guests(str(guests)), "a folder that can't be removed"
    task = tmp_path / "step_extern" / "user" / "task_0"
    task.mkdir()
    assert leave_guests(str(task))
    assert task.is_dir()


@pytest.mark.spec("ATTACH-1")
def test_a_hybrid_host_has_both(tmp_path: Path) -> None:
    v1(tmp_path)
    v2(tmp_path / "unified")
    found = find_job(tmp_path, "n1", UID, JOB)
    assert found is not None
    assert [folder.hierarchy for folder in found.folders] == ["freezer", ""]


def test_without_an_extern_step_there_is_no_place_for_guests(tmp_path: Path) -> None:
    group(tmp_path / "freezer" / "slurm" / f"uid_{UID}" / f"job_{JOB}" / "step_0", 5)
    # Left behind in another hierarchy: it would count, but not end with the job.
    group(tmp_path / "memory" / "slurm" / f"uid_{UID}" / f"job_{JOB}" / "step_extern")
    found = find_job(tmp_path, "n1", UID, JOB)
    assert found is not None
    assert found.guests == ()
    assert found.anchors() == []


@pytest.mark.spec("ATTACH-1")
@pytest.mark.threat("own-cgroup")
def test_another_user_s_job_is_not_found(tmp_path: Path) -> None:
    v1(tmp_path)
    assert find_job(tmp_path, "n1", UID + 1, JOB) is None
    assert find_job(tmp_path, "n1", UID, JOB + 1) is None
    assert find_job(tmp_path, "../n1", UID, JOB) is None
    assert find_job(tmp_path / "nothing", "n1", UID, JOB) is None


@pytest.mark.threat("own-cgroup")
def test_names_of_the_user_s_own_mean_nothing(tmp_path: Path) -> None:
    v1(tmp_path)
    job = tmp_path / "freezer" / "slurm_n1" / f"uid_{UID}" / f"job_{JOB}"
    for name in ("step_", "step_extern2", "step_0x", "step_batch ", "step_٣", "other"):
        group(job / name, 66)
    (job / "step_77").symlink_to(job / "step_2")
    group(job / "step_2" / "task_0" / "task_1", 67)
    group(job / "step_2" / "task_5", 68)
    found = find_job(tmp_path, "n1", UID, JOB)
    assert found is not None
    assert found.steps()[0].pids() == [7, 9, 68]
    assert [step.name for step in found.steps()] == ["2", "10", "batch"]


@given(some.text(max_size=40))
def test_a_list_of_processes_may_hold_anything(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        v1(root)
        job = root / "freezer" / "slurm_n1" / f"uid_{UID}" / f"job_{JOB}"
        (job / "step_2" / "cgroup.procs").write_text(text)
        found = find_job(root, "n1", UID, JOB)
        assert found is not None
        assert all(pid > 0 for pid in found.steps()[0].pids())


@pytest.mark.spec("ATTACH-1")
def test_a_job_is_over_when_its_steps_are(tmp_path: Path) -> None:
    (tmp_path / "step_0").mkdir()
    (tmp_path / "step_extern").mkdir()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert has_steps(folder)
        (tmp_path / "step_0").rmdir()
        assert not has_steps(folder)
    finally:
        os.close(folder)
