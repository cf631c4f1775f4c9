"""Counters of processes: those of the granted job, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import Outcome, ReadProcessCounters
from lattice.helper.counters import ProcessCounters, counters_of
from lattice.helper.privilege import Kernel

pytestmark = pytest.mark.spec("AUTH-9")

IO = "rchar: 10\nwchar: 20\nread_bytes: 4096\ncancelled_write_bytes: 0\n"
V1 = "9:freezer:/slurm_n1/uid_3001/job_42/step_0\n1:name=systemd:/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"


def process(proc: Path, pid: int, cgroup: str, io: str = IO) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "io").write_text(io)


@pytest.mark.parametrize("cgroup", [V1, V2])
def test_a_process_of_the_job(tmp_path: Path, cgroup: str) -> None:
    process(tmp_path, 7, cgroup)
    assert counters_of(tmp_path, 7, 42) == {
        "rchar": 10,
        "wchar": 20,
        "read_bytes": 4096,
        "cancelled_write_bytes": 0,
    }


@pytest.mark.parametrize("job_id", [4, 2, 420, 3001])
def test_no_process_of_another_job(tmp_path: Path, job_id: int) -> None:
    process(tmp_path, 7, V1 + V2)
    assert counters_of(tmp_path, 7, job_id) == {}
    assert counters_of(tmp_path, 8, 42) == {}


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        process(Path(folder), 7, V2, text)
        assert all(type(each) is int for each in counters_of(Path(folder), 7, 42).values())


@pytest.mark.parametrize(
    ("user", "job_id", "outcome"),
    [
        ("root", 1, Outcome.ACCOUNT_REFUSED),
        ("no-such-user", 1, Outcome.ACCOUNT_REFUSED),
        ("", 1, Outcome.ACCOUNT_REFUSED),
        ("root", 0, Outcome.BAD_QUESTION),
    ],
)
def test_a_grant_that_names_no_job_of_a_user(user: str, job_id: int, outcome: Outcome) -> None:
    grant = Grant(
        id="0" * 32, act=Act.READ_COUNTERS, place="n1", subject="s", user=user, job_id=job_id,
        issued=0, expires=1,
    )  # fmt: skip
    answer = ProcessCounters(Kernel()).read(grant, ReadProcessCounters((1,)), ())
    assert answer.outcome is outcome
