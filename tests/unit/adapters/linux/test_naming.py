from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.linux.slurm_names import (
    JobName,
    is_v1_base,
    is_v2_scope,
    job_of,
    job_of_title,
    socket_of,
    step_of,
    task_of,
    user_of,
)
from lattice.domain.nodejobs import StepId

_SLUID = "s5K1KKYAYG5D00"


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("job_12", JobName(12)),
        (_SLUID, JobName(sluid=_SLUID)),
        (f"job_{_SLUID}", JobName(sluid=_SLUID)),
        ("job_0", None),
        ("job_4294967294", None),
        ("job_", None),
        ("job_1x", None),
        ("job_١", None),
        ("job_12\n", None),
        ("system", None),
        ("slurmd", None),
        ("s5K1KKYAYG5D0U", None),
    ],
)
def test_jobs(name: str, job: JobName | None) -> None:
    assert job_of(name) == job


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_batch", StepId("batch")),
        ("step_extern", StepId("extern")),
        ("step_interactive", StepId("interactive")),
        ("step_0", StepId("0")),
        ("step_17+2", StepId("17", 2)),
        ("step_4294967291", StepId("batch")),
        ("step_4294967292", StepId("extern")),
        ("step_4294967290", StepId("interactive")),
        ("step_", None),
        ("step_../x", None),
        ("steps_0", None),
    ],
)
def test_steps(name: str, step: StepId | None) -> None:
    assert step_of(name) == step


def test_tasks_users_and_bases() -> None:
    assert [task_of(name) for name in ("task_0", "task_1023", "task_special")] == [0, 1023, None]
    assert task_of("task_4294967294") is None
    assert [user_of(name) for name in ("uid_0", "uid_3001", "uid_x")] == [0, 3001, None]
    assert [is_v1_base(name) for name in ("slurm", "slurm_n1", "slurmd", "lab")] == [
        *(True, True),
        *(False, False),
    ]
    scopes = ("slurmstepd.scope", "n1_slurmstepd.scope", "slurmd.service", "xslurmstepd.scope")
    assert [is_v2_scope(name) for name in scopes] == [True, True, False, False]


@pytest.mark.parametrize(
    ("name", "job", "step"),
    [
        ("n1_12.0", JobName(12), StepId("0")),
        ("my_node_12.4294967291", JobName(12), StepId("batch")),
        ("n1_12.4294967292", JobName(12), StepId("extern")),
        ("n1_12.3.1", JobName(12), StepId("3", 1)),
        (f"n1_{_SLUID}.0", JobName(sluid=_SLUID), StepId("0")),
    ],
)
def test_sockets(name: str, job: JobName, step: StepId) -> None:
    found = socket_of(name)
    assert found is not None
    assert (found.job, found.step) == (job, step)


def test_the_rest_of_the_spool_is_no_socket() -> None:
    others = ("cred_state", "cred_state.old", "hwloc_topo_whole.xml", "job00012", "n1_12", "_1.1x")
    assert [socket_of(name) for name in others] == [None] * len(others)


def test_a_daemon_tells_its_job() -> None:
    assert job_of_title("slurmstepd: [12.batch]") == 12
    assert job_of_title(f"slurmstepd: [{_SLUID}:12.0]") == 12
    assert job_of_title("sleep 100") is None
    assert job_of_title("vim slurmstepd: [12.batch]") is None


@given(st.text(max_size=80))
def test_no_name_is_too_odd(name: str) -> None:
    job, step, socket = job_of(name), step_of(name), socket_of(name)
    assert job is None or job.job_id is not None or job.sluid is not None
    assert step is None or name.startswith("step_")
    assert socket is None or "_" in name
    assert user_of(name) is None or name == f"uid_{name[4:]}"
    assert task_of(name) is None or int(name[5:]) == task_of(name)
    job_of_title(name)


@given(st.integers(1, 2**26), st.integers(0, 2**31), st.none() | st.integers(0, 128))
def test_names_read_back(job: int, step: int, offset: int | None) -> None:
    part = "" if offset is None else f"+{offset}"
    assert job_of(f"job_{job}") == JobName(job)
    assert step_of(f"step_{step}{part}") == StepId(str(step), offset)
    socket = socket_of(f"n_1_{job}.{step}{part.replace('+', '.')}")
    assert socket is not None
    assert (socket.job.job_id, socket.step) == (job, StepId(str(step), offset))
