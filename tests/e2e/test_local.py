"""A job owner on a login node without any Lattice server: Slurm's commands and her own rights."""

from __future__ import annotations

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person, Said
from tests.eventually import eventually

pytestmark = pytest.mark.lab

_SCRIPT = """#!/bin/bash
echo begun
until [ -e ~/local-enough ]; do :; done
echo over
"""


def _local(lab: Lab, user: str, *words: str) -> Said:
    # A server that is not there: nothing may be asked of it.
    unreachable = {"LATTICE_API_URL": "https://127.0.0.1:1"}
    return Person(lab, user).lattice("--local", *words, env=unreachable)


@pytest.mark.story
@pytest.mark.spec("TRY-3", "SRC-2")
def test_a_job_is_followed_without_a_server_and_by_its_owner_alone(quiet_lab: Lab) -> None:
    quiet_lab.run_as("alice", ["rm", "-f", "/home/alice/local-enough"])
    job = quiet_lab.sbatch("alice", "-J", "train", "-o", "train-%j.log", script=_SCRIPT)
    quiet_lab.wait_job_state(job, "RUNNING")

    listed = _local(quiet_lab, "alice", "status", "-o", "json").json["allocations"]
    assert [(each["id"], each["state"]) for each in listed if each["id"] == str(job)] == [
        (str(job), "running")
    ]
    card = eventually(
        lambda: _local(quiet_lab, "alice", "status", str(job), "-o", "json").json,
        lambda seen: seen["last_output"]["time"] is not None,
    )
    assert (card["allocation"]["name"], card["allocation"]["vcluster"]) == ("train", None)

    top = _local(quiet_lab, "alice", "top", str(job), "--once", "-o", "json").json
    cells = {each["metric"]: each for each in top["rows"][0]["cells"]}
    assert top["origin"]["source"] == "in_job_probe"
    assert cells["cpu_utilization"]["value"] > 0
    assert cells["memory_used"]["value"] > 0
    assert all(each["reason"] for each in cells.values() if each["value"] is None)

    for verb in ("status", "logs", "top"):
        refused = _local(quiet_lab, "bob", verb, str(job))
        absent = _local(quiet_lab, "bob", verb, "4000000")
        assert refused.code == absent.code == 102
        assert refused.err.replace(str(job), "4000000") == absent.err

    quiet_lab.run_as("alice", ["touch", "/home/alice/local-enough"])
    followed = _local(quiet_lab, "alice", "logs", "-f", str(job))
    assert (followed.code, followed.out) == (0, "begun\nover\n"), followed
    assert f"end of job {job} (completed, exit 0:0)" in followed.err

    past = eventually(
        lambda: _local(quiet_lab, "alice", "history", "-o", "json").json["allocations"],
        lambda seen: [each["state"] for each in seen if each["id"] == str(job)] == ["completed"],
    )
    (row,) = [each for each in past if each["id"] == str(job)]
    assert row["exit_code"] == {"code": 0, "signal": 0}
    theirs = _local(quiet_lab, "bob", "history", "-o", "json").json["allocations"]
    assert str(job) not in {each["id"] for each in theirs}
    assert _local(quiet_lab, "alice", "attach", str(job)).code == 2
