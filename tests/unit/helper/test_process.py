"""What `/proc` says of a process, read strictly: the kernel's text, and text that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.helper.kernel_texts import DescriptorFacts, read_descriptor_facts, read_stat, text_of
from lattice.helper.process import is_of_job, pinned, step_of

V1 = "9:freezer:/slurm_n1/uid_3001/job_42/step_0\n1:name=systemd:/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"
FIELDS = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20 21"


@pytest.mark.threat("named-cgroup")
@pytest.mark.parametrize(
    ("cgroups", "step"),
    [
        (V1, "0"),
        (V2, "0"),
        ("1:name=systemd:/\n9:freezer:/job_42/step_batch\n", "batch"),
        ("0::/a/job_42/step_3+1/user/task_9\n", "3+1"),
        ("0::/job_42\n", ""),
        ("0::/job_42/user/step_1\n", ""),
        ("0::/job_7/step_0/job_42/step_1\n", ""),
        ("0::/job_42/step_../x\n", ""),
        ("0::/job_42/step_99999999999\n", ""),
        ("", ""),
    ],
)
def test_the_step_stands_right_below_the_job(cgroups: str, step: str) -> None:
    assert step_of(cgroups, 42) == step


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize("cgroups", [V1, V2, "0::/\n" + V1, "3:a:/\n" * 100 + V2])
def test_a_process_of_the_job(cgroups: str) -> None:
    assert is_of_job(cgroups, 42)
    for other in (4, 2, 420, 3001, 0, 142):
        assert not is_of_job(cgroups, other)


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("named-cgroup")
@pytest.mark.parametrize(
    "cgroups",
    [
        "",
        "0::/job_7/step_0/job_42\n",  # a folder that job 7 made
        "0::/job_42x/step_0\n",
        "0::/xjob_42\n",
        "0::/job_042\n",
        "0::/job_４２\n",
        "job_42:freezer:/\n",
        "0::\njob_42\n",
        "0::/JOB_42\n",
    ],
)
def test_no_process_of_the_job(cgroups: str) -> None:
    assert not is_of_job(cgroups, 42)


@given(st.text(), st.integers())
def test_any_text_is_of_a_job_or_not(text: str, job_id: int) -> None:
    assert is_of_job(text, job_id) in (True, False)


@pytest.mark.parametrize("comm", ["sleep", "a b", ") R 1 (", "((", "))", "", "\n", "x) S 1 2"])
def test_a_name_can_not_move_the_fields(comm: str) -> None:
    stat = read_stat(f"12 ({comm}) {FIELDS}\n")
    assert stat is not None
    assert (stat.started, stat.name) == (987654, comm)


@pytest.mark.parametrize(
    "text", ["", "12", "12 (a)", "12 a) " + FIELDS, f"12 (a) {FIELDS}".replace("987654", "-1")]
)
def test_what_is_no_stat(text: str) -> None:
    assert read_stat(text) is None


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    read_stat(text)
    read_descriptor_facts(text)


def test_facts_of_a_descriptor() -> None:
    text = "pos:\t120\nflags:\t0102001\nmnt_id:\t29\nino:\t77\nlock:\t1: FLOCK\npos:\t9\n"
    facts = read_descriptor_facts(text)
    assert facts == DescriptorFacts(120, 0o102001, 29, 77)
    assert facts.writes
    assert facts.same_file(DescriptorFacts(500, 0o102001, 29, 77))
    assert not facts.same_file(DescriptorFacts(120, 0o102001, 29, 78))
    assert not facts.same_file(DescriptorFacts(120, 0o102001, 30, 77))
    old = read_descriptor_facts("pos:\t0\nflags:\t02\nmnt_id:\t1\n")
    assert old == DescriptorFacts(0, 2, 1, None)


@pytest.mark.parametrize(
    ("flags", "writes"),
    [(0o0, False), (0o1, True), (0o2, True), (0o102000, False), (0o10000000, False)],
)
def test_who_writes(flags: int, *, writes: bool) -> None:
    assert DescriptorFacts(0, flags, 1, None).writes is writes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pos: 1\nflags: 1",
        "pos: -1\nflags: 01\nmnt_id: 1",
        "pos: 1\nflags: 9\nmnt_id: 1",
        "pos: 1\nflags: 0x1\nmnt_id: 1",
        "pos: 1\nflags: 01\nmnt_id: ٣",
        "pos: " + "9" * 30 + "\nflags: 01\nmnt_id: 1",
    ],
)
def test_facts_that_are_none(text: str) -> None:
    assert read_descriptor_facts(text) is None


def test_the_facts_the_kernel_tells(tmp_path: Path) -> None:
    with (tmp_path / "f").open("a") as file:
        file.write("abc")
        file.flush()
        folder = os.open("/proc/self", os.O_RDONLY)
        facts = read_descriptor_facts(text_of(folder, f"fdinfo/{file.fileno()}"))
        os.close(folder)
    assert facts is not None
    assert (facts.position, facts.writes) == (3, True)
    assert facts.inode in (None, (tmp_path / "f").stat().st_ino)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    folder = os.open(tmp_path, os.O_RDONLY)
    assert len(text_of(folder, "f", 70_000)) == 70_000
    assert text_of(folder, "none") == ""
    assert text_of(folder, ".") == ""
    os.close(folder)


def _process(proc: Path, cgroup: str, start: str = "987654") -> None:
    folder = proc / "7"
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "stat").write_text(f"7 (srun) {FIELDS}".replace("987654", start))


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("reused-pid")
def test_a_pinned_process_that_changes_is_noticed(tmp_path: Path) -> None:
    _process(tmp_path, V2)
    with pinned(tmp_path, 7, 42) as process:
        assert process is not None
        assert (process.pid, process.started, process.comm) == (7, 987654, "srun")
        assert process.unchanged()
        for cgroup, start in ((V2, "987655"), (V2.replace("42", "43"), "987654"), ("", "987654")):
            _process(tmp_path, cgroup, start)
            assert not process.unchanged()
        _process(tmp_path, V2)
        assert process.unchanged()
    for job_id, pid in ((43, 7), (42, 8)):
        with pinned(tmp_path, pid, job_id) as process:
            assert process is None
