"""What is read of the process that is entered, and what is concluded from it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lattice.helper.job_entry import read_report
from lattice.helper.jobgroups import HelperJobFolder, JobGroups
from lattice.helper.kernel_texts import read_environment, status_of
from lattice.helper.privilege import Kernel
from lattice.helper.target import (
    NoTarget,
    find_target,
    read_limits,
)

UID, JOB = 3001, 42


def process(proc: Path, pid: int, *, uid: int = UID, state: str = "S", comm: str = "python",
            job: int = JOB, userns: str = "1") -> None:  # fmt: skip
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "cgroup").write_text(f"4:freezer:/slurm_n1/uid_{uid}/job_{job}/step_0\n")
    (folder / "stat").write_text(f"{pid} ({comm}) {state} {'0 ' * 18}777 0\n")
    (folder / "status").write_text(
        f"Name:\t{comm}\nUmask:\t0027\nState:\t{state} (x)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
    )
    for name in ("ipc", "uts", "net", "mnt", "pid", "cgroup"):
        (folder / "ns" / name).write_text("")
    (folder / "ns" / "user").hardlink_to(proc / f"userns{userns}")
    (folder / "root").mkdir()
    (folder / "cwd").mkdir()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    (proc / "self" / "ns").mkdir(parents=True)
    for number in "12":
        (proc / f"userns{number}").write_text("")
    (proc / "self" / "ns" / "user").hardlink_to(proc / "userns1")
    for name in ("ipc", "uts", "net", "mnt", "pid", "cgroup"):
        (proc / "self" / "ns" / name).write_text("")
    return proc


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


def step(job: Path, name: str, *pids: int) -> None:
    (job / name).mkdir(parents=True)
    (job / name / "cgroup.procs").write_text("".join(f"{each}\n" for each in pids))


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long ago the job began here; a plain folder would not keep it."""

    def set_age(ago_s: float) -> None:
        moment = time.time() - ago_s
        monkeypatch.setattr(JobGroups, "born", property(lambda _: moment))

    return set_age


class _Kernel(Kernel):
    """Is nobody but itself."""

    def set_file_user(self, uid: int) -> None:
        assert uid in (0, UID)


def chosen(proc: Path, job: Path) -> tuple[int, str]:
    groups = JobGroups((HelperJobFolder("freezer", str(job)),))
    with find_target(_Kernel(), proc, groups, UID, JOB) as target:
        return target.process.pid, target.step


@pytest.fixture(autouse=True)
def pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda _: os.open("/dev/null", os.O_RDONLY))


def test_the_work_comes_before_the_script(proc: Path, job: Path) -> None:
    step(job, "step_batch", 10)
    step(job, "step_1", 12, 11)
    for pid in (10, 11, 12):
        process(proc, pid)
    assert chosen(proc, job) == (11, "1")


@pytest.mark.spec("ATTACH-7")
def test_whoever_is_not_the_owner_s_is_passed_by(proc: Path, job: Path) -> None:
    step(job, "step_0", 10, 11, 12, 13, 14, 15)
    step(job, "step_batch", 20)
    process(proc, 10, uid=0)
    process(proc, 11, uid=UID + 1)
    process(proc, 12, state="Z")
    process(proc, 13, comm="slurmstepd")
    process(proc, 14, job=JOB + 1)  # 15 is gone
    process(proc, 20)
    assert chosen(proc, job) == (20, "batch")


@pytest.mark.threat("user-namespace")
def test_a_view_of_its_own_is_taken_only_if_there_is_no_other(proc: Path, job: Path) -> None:
    step(job, "step_0", 10)
    step(job, "step_batch", 20)
    process(proc, 10, userns="2")
    assert chosen(proc, job) == (10, "0")
    process(proc, 20)
    assert chosen(proc, job) == (20, "batch")


@pytest.mark.spec("ATTACH-1")
def test_where_no_step_runs_slurm_s_own_process_is_taken(
    proc: Path, job: Path, began: Callable[[float], None]
) -> None:
    step(job, "step_extern", 10, 11)
    process(proc, 10)
    process(proc, 11, uid=0, comm="sleep")
    began(60)
    groups = JobGroups((HelperJobFolder("freezer", str(job)),))
    with find_target(_Kernel(), proc, groups, UID, JOB) as target:
        assert (target.process.pid, target.step, target.directory) == (11, "extern", -1)
        # Nothing of root's is handed on.
        assert target.environment == {b"SLURM_JOB_ID": b"42", b"SLURM_JOBID": b"42"}
        assert target.limits == ()
        assert target.goes_on()
        (job / "step_extern" / "cgroup.procs").unlink()
        (job / "step_extern").rmdir()
        assert not target.goes_on()


def test_a_job_that_has_just_begun_is_waited_for(
    proc: Path, job: Path, began: Callable[[float], None]
) -> None:
    step(job, "step_extern", 11)
    process(proc, 11, uid=0, comm="sleep")
    began(1)
    with pytest.raises(NoTarget, match="none yet"):
        chosen(proc, job)


@pytest.mark.parametrize("ids", ["3001\t0\t0\t0", "0\t0\t0\t3001", "0\t3001\t0\t0"])
def test_a_setuid_program_in_the_extern_step_is_passed_by(
    proc: Path, job: Path, ids: str, began: Callable[[float], None]
) -> None:
    step(job, "step_extern", 11)
    process(proc, 11, uid=0, comm="sleep")
    (proc / "11" / "status").write_text(f"Name:\tsleep\nState:\tS (x)\nUid:\t{ids}\n")
    began(60)
    with pytest.raises(NoTarget):
        chosen(proc, job)


def test_nobody_there_is_said_in_words(proc: Path, job: Path) -> None:
    step(job, "step_extern", 10)
    process(proc, 10)
    with pytest.raises(NoTarget, match="Job 42 has no process of yours on this node"):
        chosen(proc, job)
    with pytest.raises(NoTarget, match="Job 42 is over on this node"):
        chosen(proc, job / "gone")


@pytest.mark.spec("ATTACH-7")
@pytest.mark.threat("leaked-descriptor")
def test_no_descriptor_is_left_open(proc: Path, job: Path) -> None:
    step(job, "step_0", *range(10, 30))
    for pid in range(10, 29):
        process(proc, pid, uid=0)
    process(proc, 29)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert chosen(proc, job) == (29, "0")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_limits_are_read() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max cpu time              unlimited            unlimited            seconds   \n"
        "Max resident set          536870912            unlimited            bytes     \n"
        "Max open files            20000                20000                files     \n"
        "Max realtime timeout      unlimited            unlimited            us        \n"
    )
    assert read_limits(text) == (
        (resource.RLIMIT_CPU, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        (resource.RLIMIT_RSS, 536870912, resource.RLIM_INFINITY),
        (resource.RLIMIT_NOFILE, 20000, 20000),
    )


@given(some.binary(max_size=200))
def test_an_environment_may_hold_anything(raw: bytes) -> None:
    for name, value in read_environment(raw).items():
        assert name
        assert b"=" not in name
        assert b"\0" not in name + value
        assert name + b"=" + value + b"\0" in raw


def test_a_cut_environment_loses_its_last_variable() -> None:
    assert read_environment(b"A=1\0B=2=3\0=x\0no\0C=cu") == {b"A": b"1", b"B": b"2=3"}


@given(some.text(max_size=100))
def test_status_and_words_may_hold_anything(text: str) -> None:
    assert all("\n" not in name for name in status_of(text))
    read_limits(text)
    told = read_report(text.encode(errors="replace"))
    assert isinstance(told.fault, str)


def test_what_was_told_on_the_way() -> None:
    told = read_report(b"d/home/a\0wno shell\0")
    assert (told.fault, told.directory, told.warnings) == ("", "/home/a", ("no shell",))
    assert read_report(b"d/\0!it failed\0").fault == "it failed"
    assert read_report(b"").fault == "it was killed before it could start"
