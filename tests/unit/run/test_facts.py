"""What a process says of its job: on recorded environments of real jobs, and on hostile ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_run.facts import attributes, current

RECORDED = Path(__file__).parents[2] / "fixtures" / "run"
RELEASES = ("22.05", "26.05")
FIRST_V2 = "0::/system.slice/slurmstepd.scope/job_1/step_batch/user/task_0\n"
RUN_V2 = "0::/system.slice/n1_slurmstepd.scope/sDFDM7JZPGD600/step_3/user/task_0\n"


def processes(release: str, case: str) -> list[dict[str, Any]]:
    everything = json.loads((RECORDED / f"slurm-{release}.json").read_text())
    return list(everything[case])


def of(release: str, case: str) -> list[dict[str, str | int]]:
    return [attributes(each["environment"], each["cgroup"]) for each in processes(release, case)]


def the(release: str, case: str) -> dict[str, str | int]:
    (found,) = of(release, case)
    return found


def every_process() -> Iterator[dict[str, Any]]:
    for release in RELEASES:
        for each in json.loads((RECORDED / f"slurm-{release}.json").read_text()).values():
            yield from each


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("release", RELEASES)
def test_a_plain_job(release: str) -> None:
    found = the(release, "plain-step")
    assert (
        found.items()
        >= {
            "slurm.cluster.name": "lab",
            "slurm.job.id": "1",
            "slurm.job.name": "plain",
            "slurm.job.account": "research",
            "slurm.job.partition": "batch",
            "slurm.job.node_count": 1,
            "slurm.job.restart_count": 0,
            "slurm.step.id": "0",
            "slurm.step.task_count": 1,
            "slurm.task.rank": 0,
            "lattice.allocation.id": "1",
            "lattice.allocation.attempt": 1,
        }.items()
    )
    assert found["slurm.node.name"] == found["slurm.job.nodes"]
    assert the(release, "plain")["slurm.step.id"] == "batch"


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", ["array", "array-step"])
def test_tasks_of_an_array_have_their_own_names(release: str, case: str) -> None:
    found = of(release, case)
    assert sorted(str(each["lattice.allocation.id"]) for each in found) == ["3_3", "3_5"]
    for each in found:
        assert each["slurm.array.job_id"] == "3"
        assert each["lattice.allocation.id"] == f"3_{each['slurm.array.task_id']}"
    assert len({each["slurm.job.id"] for each in found}) == 2


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("release", RELEASES)
def test_a_requeued_job_counts_its_attempts(release: str) -> None:
    first, second = the(release, "run-step"), the(release, "run-step1")
    assert first["lattice.allocation.id"] == second["lattice.allocation.id"]
    assert (first["lattice.allocation.attempt"], first["slurm.job.restart_count"]) == (1, 0)
    assert (second["lattice.allocation.attempt"], second["slurm.job.restart_count"]) == (2, 1)


def test_each_run_has_its_unique_id() -> None:
    first, second = the("26.05", "run"), the("26.05", "run1")
    assert first["slurm.job.sluid"] != second["slurm.job.sluid"]


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("release", RELEASES)
def test_ranks_on_two_nodes(release: str) -> None:
    found = sorted(of(release, "nodes-step"), key=lambda each: each["slurm.task.rank"])
    assert [each["slurm.task.rank"] for each in found] == [0, 1, 2, 3]
    places = {(each["slurm.node.name"], each["slurm.node.index"]) for each in found}
    assert places == {("n1", 0), ("n2", 1)}
    for node in ("n1", "n2"):
        here = [each for each in found if each["slurm.node.name"] == node]
        assert [each["slurm.task.local_rank"] for each in here] == list(range(len(here)))
    assert {each["slurm.step.task_count"] for each in found} == {4}
    assert {each["slurm.job.nodes"] for each in found} == {"n[1-2]"}
    one = the(release, "nodes-one")
    assert (one["slurm.step.id"], one["slurm.step.task_count"]) == ("1", 1)


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("hidden", [False, True])
def test_components_of_a_heterogeneous_job(release: str, hidden: bool) -> None:
    """Also in a container, which hides the control group: then by the node."""
    for case in ("het", "het-one", "het-both"):
        for each in processes(release, case):
            found = attributes(each["environment"], "" if hidden else each["cgroup"])
            group = {"n2": 0, "n1": 1}[str(found["slurm.node.name"])]
            leader = int(str(found["slurm.het.job_id"]))
            assert found["slurm.het.group"] == group
            assert found["slurm.het.size"] == 2
            assert found["slurm.job.id"] == str(leader + group)
            assert found["lattice.allocation.id"] == f"{leader}+{group}"
            assert found["slurm.job.nodes"] == found["slurm.node.name"]
            assert found["slurm.job.node_count"] == 1
    assert {each["slurm.task.rank"] for each in of(release, "het-both")} == {0, 1, 2}


def test_a_component_that_can_not_be_known_is_not_guessed() -> None:
    for each in processes("26.05", "het-both"):
        environment = each["environment"] | {
            "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
            "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1,2]",
        }
        found = attributes(environment, "")
        assert found["lattice.allocation.id"] == found["slurm.het.job_id"]
        assert "slurm.het.group" not in found
        assert "slurm.job.nodes" not in found


@pytest.mark.parametrize("release", RELEASES)
def test_a_job_submitted_from_inside_another_does_not_pass_for_it(release: str) -> None:
    for case in ("in-array", "in-array-step", "in-het", "in-requeued", "in-step"):
        found = the(release, case)
        assert found["lattice.allocation.id"] == found["slurm.job.id"], case
        assert not [name for name in found if name.startswith(("slurm.array", "slurm.het"))]
        assert found["slurm.step.id"] == ("0" if case == "in-array-step" else "batch")
        assert found.get("lattice.allocation.attempt") == (None if case == "in-requeued" else 1)


@pytest.mark.parametrize("release", RELEASES)
def test_a_shell_of_salloc_is_in_no_step(release: str) -> None:
    found = the(release, "salloc")
    assert found["lattice.allocation.id"] == found["slurm.job.id"]
    assert not [name for name in found if name.startswith(("slurm.step", "slurm.task"))]


def test_control_groups_of_version_2() -> None:
    assert attributes({}, FIRST_V2) == {
        "slurm.job.id": "1",
        "lattice.allocation.id": "1",
        "slurm.step.id": "batch",
    }
    assert attributes({"SLURM_JOB_ID": "1"}, RUN_V2)["slurm.step.id"] == "3"
    assert attributes({}, RUN_V2) == {}


def test_another_jobs_variables_are_not_this_ones() -> None:
    """A shell from job 1 that Slurm moved into job 77."""
    (process,) = processes("22.05", "plain-step")
    found = attributes(process["environment"], "2:freezer:/slurm/uid_1000/job_77/step_extern\n")
    assert found["slurm.job.id"] == found["lattice.allocation.id"] == "77"
    assert found["slurm.step.id"] == "extern"
    assert "slurm.job.name" not in found
    assert "slurm.task.rank" not in found


@pytest.mark.parametrize("name", ["SLURM_STEP_ID", "SLURM_STEPID"])
def test_numbers_of_special_steps_are_their_names(name: str) -> None:
    here = {"SLURM_JOB_ID": "5", name: "4294967291"}
    expected = "batch" if name == "SLURM_STEP_ID" else None
    assert attributes(here, "").get("slurm.step.id") == expected


@pytest.mark.parametrize("job", ["", "0", "-1", "many", "1" * 11, "１２", "(null)"])
def test_no_job_no_attributes(job: str) -> None:
    others = {"SLURM_JOB_NAME": "x", "SLURM_ARRAY_JOB_ID": "3", "LATTICE_TENANT": "physics"}
    assert attributes({"SLURM_JOB_ID": job, **others}, "0::/user.slice/session-1.scope\n") == {}


def test_a_name_that_can_not_be_sent_is_left_out() -> None:
    for bad in ("caf\udce9", "a\nb", "\x1b[31m", "x" * 5000):
        here = {"SLURM_JOB_ID": "5", "SLURM_JOB_NAME": bad, "SLURM_JOB_PARTITION": "gpu"}
        found = attributes(here, "")
        assert "slurm.job.name" not in found
        assert found["slurm.job.partition"] == "gpu"


def test_the_tenant_is_what_the_site_says() -> None:
    here = {"SLURM_JOB_ID": "5", "LATTICE_TENANT": "physics"}
    assert attributes(here, "")["lattice.tenant"] == "physics"


_NAMES = sorted({name for each in every_process() for name in each["environment"]})
_VALUES = st.one_of(
    st.text(max_size=30), st.integers().map(str), st.from_regex(r"n\[?[0-9,\[\]-]{0,9}")
)


@given(
    st.dictionaries(st.sampled_from(_NAMES), _VALUES),
    st.text() | st.from_regex(r"0::/slurm/job_[0-9]{0,12}/step_[a-z0-9]{0,4}"),
)
def test_whatever_it_reads_can_be_sent(environment: dict[str, str], cgroup: str) -> None:
    for name, value in attributes(environment, cgroup).items():
        assert name.startswith(("slurm.", "lattice."))
        if isinstance(value, int):
            assert 0 <= value < 2**63
        else:
            assert 0 < len(value.encode()) <= 8000


@pytest.mark.spec("RUN-1")
def test_no_failure_reaches_the_training() -> None:
    def fail() -> str:
        raise MemoryError

    assert current({"SLURM_JOB_ID": "5"}, fail) == {}
    assert current({}, lambda: "") == {}
