"""A person measures a node in a job, without a server and without rights."""

from __future__ import annotations

import json

import pytest

from lab.laboratory import Lab
from lab.other_python import LAB_PYTHON
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.mark.story
@pytest.mark.spec("SLICE-3")
def test_a_node_is_measured_in_a_job_and_compared(quiet_lab: Lab) -> None:
    lattice = f"env -u LATTICE_API_URL {LAB_PYTHON.parent}/lattice"
    capture = f"{lattice} bench capture --name host --repeat 8 --to host.json -q"
    compare = f"{lattice} bench compare host.json host.json -o json > compared.json"
    job = quiet_lab.sbatch(
        "alice", "--nodelist=n1", "--mem=500", wrap=f"{capture} && {compare} && mv compared.json c"
    )
    done = eventually(lambda: quiet_lab.run_as("alice", ["cat", "c"]), lambda seen: seen.stdout)
    found = json.loads(done.stdout)
    assert {each["sureness"] for each in found["measures"]} == {"none found", "unknown"}
    measured = {each["name"] for each in found["measures"] if each["percent_low"] is not None}
    assert {"cpu_hash", "cpu_loop", "disk_write", "loopback"} & measured
    assert quiet_lab.jobs.states(job) == ["COMPLETED"]
