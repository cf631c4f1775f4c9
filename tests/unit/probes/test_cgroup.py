"""Control groups of a job: the kernel's own figures, on v1 and v2 alike, or why there are none."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from lattice.domain.metric import MetricReading, Sample
from lattice.domain.nodejobs import NodeJob
from lattice.probes.cgroup import NO_LIMIT, NO_PRESSURE, NOT_REPORTED, CgroupProbe, count_cpus
from tests.fakes.kernel_trees import V1_JOB, V2_JOB, Tree, reasons, v1_job, values
from tests.fakes.manual_clock import RECORDED, ManualClock

OOM = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def read(
    tree: Tree, probe: CgroupProbe | None = None, job: NodeJob | None = None
) -> Sequence[MetricReading]:
    probe = probe or CgroupProbe(tree.roots, ManualClock())
    job = job or tree.job
    return probe.read([job])[job.identity]


@pytest.mark.spec("TOP-1", "TOP-2")
def test_a_job_on_v1(tmp_path: Path) -> None:
    found = read(Tree(tmp_path, "v1"))
    assert values(found) == {
        "cpu_seconds_total": 93.482764512,
        "cpu_cores": 3,
        "memory_used_bytes": 314572800 + 1048576,
        "memory_cache_bytes": 1074790400 - 1048576,
        "memory_limit_bytes": 1610612736,
        "memory_oom_kills_total": 2,
    }
    assert reasons(found) == {"pressure_seconds_total": NO_PRESSURE}
    assert {each.time for each in found if isinstance(each, Sample)} == {RECORDED.timestamp()}


@pytest.mark.spec("TOP-1", "TOP-2")
def test_a_job_on_v2(tmp_path: Path) -> None:
    found = read(Tree(tmp_path, "v2"))
    assert values(found) == {
        "cpu_seconds_total": 61.234567,
        "cpu_cores": 1.5,
        "memory_used_bytes": 314572800 + 4096,
        "memory_cache_bytes": 1073745920 - 4096,
        "memory_limit_bytes": 1073741824,
        "memory_oom_kills_total": 2,
        "pressure_seconds_total cpu some": 2.5,
        "pressure_seconds_total cpu full": 0,
        "pressure_seconds_total io some": 0.751234,
        "pressure_seconds_total io full": 0.5,
        "pressure_seconds_total memory some": 0.000012,
        "pressure_seconds_total memory full": 0.000004,
    }
    assert reasons(found) == {}


@pytest.mark.spec("TOP-1")
def test_two_kills_in_steps_that_ended_are_two_on_v1(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    probe = CgroupProbe(tree.roots, ManualClock())
    memory = tmp_path / "cgroup/memory" / V1_JOB
    shutil.rmtree(memory / "step_0")
    shutil.rmtree(memory / "step_batch")
    assert values(read(tree, probe))["memory_oom_kills_total"] == 0
    for step in range(2):
        tree.write(f"cgroup/memory/{V1_JOB}/step_{step}/task_0/memory.oom_control", OOM.format(1))
        assert values(read(tree, probe))["memory_oom_kills_total"] == step + 1
        shutil.rmtree(memory / f"step_{step}")
        assert values(read(tree, probe))["memory_oom_kills_total"] == step + 1


@pytest.mark.spec("TOP-2")
def test_what_a_job_killed_says_nothing_of_another_life_of_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    probe = CgroupProbe(tree.roots, ManualClock())
    read(tree, probe)
    shutil.rmtree(tmp_path / "cgroup/memory" / V1_JOB / "step_0")
    other = v1_job(tree.roots, number=9)
    assert values(read(tree, probe, other))["memory_oom_kills_total"] == 1


@pytest.mark.spec("SRC-2")
def test_a_job_that_is_gone_has_no_figures_left(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    probe = CgroupProbe(tree.roots, ManualClock())
    assert values(read(tree, probe))
    shutil.rmtree(tmp_path / "cgroup")
    assert values(read(tree, probe)) == {}


@pytest.mark.spec("TOP-2")
def test_what_slurms_own_daemons_took_is_not_the_jobs_on_v2(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2")
    probe = CgroupProbe(tree.roots, ManualClock())
    job = f"cgroup/{V2_JOB}"

    def told(job_usec: int, daemon_usec: int) -> float:
        tree.write(f"{job}/cpu.stat", f"usage_usec {job_usec}\n")
        tree.write(f"{job}/step_batch/slurm/cpu.stat", f"usage_usec {daemon_usec}\n")
        return values(read(tree, probe))["cpu_seconds_total"]

    assert told(62_000_000, 1_500_000) == 60.5
    tree.write(f"{job}/step_extern/slurm/cpu.stat", "usage_usec 500000\n")
    tree.write(f"{job}/step_batch/user/slurm/cpu.stat", "usage_usec 9000000\n")
    tree.write(f"{job}/elsewhere/slurm/cpu.stat", "usage_usec 9000000\n")
    assert told(63_000_000, 1_500_000) == 61.0
    # A daemon that ran between the two files takes nothing back.
    assert told(63_000_000, 1_600_000) == 61.0
    assert told(64_000_000, 1_600_000) == 61.9


@pytest.mark.spec("TOP-1")
def test_what_is_told_on_v2_never_falls_when_a_step_ends_nor_anew(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2")
    probe = CgroupProbe(tree.roots, ManualClock())
    tree.write(f"cgroup/{V2_JOB}/cpu.stat", "usage_usec 10000000\n")
    tree.write(f"cgroup/{V2_JOB}/step_7/slurm/cpu.stat", "usage_usec 30000\n")
    assert values(read(tree, probe))["cpu_seconds_total"] == 9.97
    shutil.rmtree(tmp_path / "cgroup" / V2_JOB / "step_7")
    assert values(read(tree, probe))["cpu_seconds_total"] == 10.0
    # An agent that has just started tells the same.
    assert values(read(tree))["cpu_seconds_total"] == 10.0


@pytest.mark.parametrize("text", ["", "usage_usec -3\n", "usage_usec many\n", "nr_periods 9\n"])
def test_a_daemon_of_which_nothing_is_told_takes_nothing_off(tmp_path: Path, text: str) -> None:
    tree = Tree(tmp_path, "v2")
    tree.write(f"cgroup/{V2_JOB}/step_batch/slurm/cpu.stat", text)
    assert values(read(tree))["cpu_seconds_total"] == 61.234567


@pytest.mark.spec("TOP-1")
def test_processor_time_of_steps_is_carried_where_the_job_itself_has_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    probe = CgroupProbe(tree.roots, ManualClock())
    (tmp_path / f"cgroup/cpuacct/{V1_JOB}/cpuacct.usage").unlink()
    assert values(read(tree, probe))["cpu_seconds_total"] == 93.4
    tree.write(f"cgroup/cpuacct/{V1_JOB}/step_1/cpuacct.usage", "600000000\n")
    assert values(read(tree, probe))["cpu_seconds_total"] == 94.0
    shutil.rmtree(tmp_path / f"cgroup/cpuacct/{V1_JOB}/step_0")
    assert values(read(tree, probe))["cpu_seconds_total"] == 94.0
    shutil.rmtree(tmp_path / f"cgroup/cpuacct/{V1_JOB}/step_1")
    assert values(read(tree, probe))["cpu_seconds_total"] == 94.0


@pytest.mark.spec("SRC-2")
def test_steps_never_stand_in_for_a_job_that_was_told_itself(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    probe = CgroupProbe(tree.roots, ManualClock())
    read(tree, probe)
    (tmp_path / f"cgroup/cpuacct/{V1_JOB}/cpuacct.usage").unlink()
    assert reasons(read(tree, probe))["cpu_seconds_total"] == NOT_REPORTED


@pytest.mark.spec("SRC-2", "TOP-1")
@pytest.mark.parametrize("none", ["9223372036854771712", "9223372036854710272"])
def test_no_limit_on_v1_is_no_number(tmp_path: Path, none: str) -> None:
    tree = Tree(tmp_path, "v1")
    file = tmp_path / "cgroup/memory" / V1_JOB / "memory.stat"
    file.write_text(file.read_text().replace("1610612736", none))
    assert reasons(read(tree))["memory_limit_bytes"] == NO_LIMIT


@pytest.mark.spec("TOP-1")
@pytest.mark.parametrize(
    ("job", "scope", "told"),
    [
        ("max", "8589934592", 8589934592),
        ("1073741824", "536870912", 536870912),
        (None, "536870912", 536870912),
        ("max", "max", NO_LIMIT),
        (None, None, NO_LIMIT),
        ("NaN", "536870912", NOT_REPORTED),
        ("-1", "max", NOT_REPORTED),
    ],
)
def test_the_tightest_limit_on_the_way_up_counts_on_v2(
    tmp_path: Path, job: str | None, scope: str | None, told: int | str
) -> None:
    tree = Tree(tmp_path, "v2")
    for place, text in ((V2_JOB, job), (V2_JOB.rpartition("/")[0], scope)):
        file = tmp_path / "cgroup" / place / "memory.max"
        file.unlink()
        if text is not None:
            file.write_text(text + "\n")
    found = read(tree)
    assert {**values(found), **reasons(found)}["memory_limit_bytes"] == told


@pytest.mark.spec("SRC-2")
def test_without_the_controllers_it_says_which_are_missing(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    found = read(tree, job=v1_job(tree.roots, controllers=("freezer",)))
    assert values(found) == {}
    assert reasons(found)["memory_used_bytes"] == "the job has no control group of `memory`"
    assert reasons(found)["cpu_seconds_total"] == "the job has no control group of `cpuacct`"
    assert reasons(found)["cpu_cores"] == "the job is not held to cores"


@pytest.mark.spec("TOP-2")
def test_one_folder_for_two_controllers(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    (tmp_path / "cgroup/cpuacct").rename(tmp_path / "cgroup/cpu,cpuacct")
    job = v1_job(tree.roots, controllers=("freezer", "cpu,cpuacct"))
    assert values(read(tree, job=job))["cpu_seconds_total"] == 93.482764512


@pytest.mark.spec("SRC-2")
def test_a_kernel_without_pressure_says_how_to_have_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2")
    for file in (tmp_path / "cgroup" / V2_JOB).glob("*.pressure"):
        file.unlink()
    assert "psi=1" in reasons(read(tree))["pressure_seconds_total"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 1), ("0-3\n", 4), ("0-1,3,8-9", 5), ("", None), ("\n", None), (None, None),
        ("3-1", None), ("0-", None), ("a", None), ("0,,1", None), ("-1", None),
        ("0-99999999", None),
    ],
)  # fmt: skip
def test_lists_of_processors(text: str | None, count: int | None) -> None:
    assert count_cpus(text) == count
