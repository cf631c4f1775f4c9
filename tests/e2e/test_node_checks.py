"""Nodes measured by a job of their operator, on a real Slurm, without disturbing anybody."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from lab.slurm_config import GPUS
from lattice.base.portable.node_check import NO_TESTS
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
NODES = ("n1", "n2", "n3")
_COMMAND = ["lattice", "admin", "check", "n[1-3]", "-o", "json"]


@pytest.fixture
def erin(quiet_lab: Lab) -> Iterator[Person]:
    """An operator with an account on the cluster."""
    yield Person(quiet_lab, "erin").logged_in("operator")
    quiet_lab.jobs.cancel_all()


@pytest.mark.story
@pytest.mark.spec("OPS-10")
def test_three_nodes_are_measured_when_they_are_free(
    quiet_lab: Lab, erin: Person, alice: Person
) -> None:
    assert alice.tries("admin", "check", "n1").code != 0
    job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap="sleep 600")
    quiet_lab.wait_job_state(job, "RUNNING")
    checking = quiet_lab.popen_as("erin", _COMMAND, env=erin.bearer)
    (waiting,) = eventually(
        lambda: erin.asks("admin", "check", "n2", "--history")["open"],
        lambda seen: [each["state"] for each in seen] == ["pending"],
    )
    assert quiet_lab.jobs.states(job) == ["RUNNING"], "it waits, and disturbs nobody"
    quiet_lab.jobs.cancel(job)
    out, err = checking.communicate(timeout=240)
    answer = json.loads(out)
    assert [each["node"] for each in answer["nodes"]] == list(NODES), err
    for each in answer["nodes"]:
        (check,) = each["checks"]
        assert (check["job_id"], check["by"], check["reason"]) == (waiting["job_id"], "erin", "")
        found = {one["name"]: one for one in check["measures"]}
        for name in ("disk_read", "disk_write", "link", "trip", "all_reduce"):
            assert found[name]["value"], found[name]
        assert found["all_reduce"]["tool"] in {"TCP ring in Python", "torch gloo"}
        assert found["link"]["peer"] in set(NODES) - {each["node"]}
        # Every node's GPUs were the job's own; their devices have no card behind them.
        assert found["gpu_all_reduce"]["reason"] == NO_TESTS
    gpus = f"gres/gpu={GPUS * len(NODES)}"
    assert gpus in quiet_lab.ctl(["scontrol", "show", "job", str(waiting["job_id"])]).stdout
    shown = erin.tries("admin", "check", "n1", "--history")
    assert str(waiting["job_id"]) in shown.out
    assert "all-reduce over the nodes by" in " ".join(shown.out.split())
