"""What a job uses, as its owner is shown it."""

from __future__ import annotations

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.e2e.topped import cell, debugged, measured_top, row, top
from tests.eventually import eventually

pytestmark = pytest.mark.lab


@pytest.mark.story
@pytest.mark.spec("SRC-1", "SRC-2", "TOP-3", "TOP-4")
def test_two_nodes_one_busy(lab: Lab, alice: Person, bob: Person) -> None:
    """By node, summed up, with where it comes from; as a table too; and nobody else's."""
    work = "srun -N1 -n1 -w n1 --overlap sh -c 'while :; do :; done' & sleep 600"
    with debugged(lab, alice, "-w", "n[1-2]", wrap=work) as job:
        answer = eventually(
            lambda: measured_top(alice, job, "--per-node", node="n1"),
            lambda seen: (cell(seen, "cpu_utilization", "n1")["value"] or 0) > 20,
        )
        idle = cell(answer, "cpu_utilization", "n2")
        # Newer releases of Slurm account no processor time for a job without tasks on a node.
        assert idle["reason"] if idle["value"] is None else idle["value"] < 10
        parts = [cell(answer, "memory_used", node)["value"] for node in ("n1", "n2")]
        assert cell(answer, "memory_used")["value"] == pytest.approx(sum(parts))
        origin = answer["origin"]
        assert origin["source"] == "host_local_probe"
        assert origin["coverage"] == {"measured": 2, "nodes": 2}
        assert origin["resolution_s"] == 1
        assert origin["age_s"] >= 0
        gpu = cell(answer, "gpu_utilization", "n2")
        assert gpu["value"] is None
        assert gpu["reason"]

        table = alice.tries("top", str(job), "--per-node")
        assert table.code == 0, table
        assert "2/2 nodes" in table.out
        assert "—" in table.out

        told = {
            (refused.code, refused.err.replace(str(name), "ID"))
            for name in (job, 999_999)
            for refused in [bob.tries("top", str(name), "--once")]
        }
        assert len(told) == 1, "another's job and none are the same answer"


@pytest.mark.story
@pytest.mark.spec("TOP-4")
def test_a_job_that_is_over(lab: Lab, alice: Person) -> None:
    """Over its own lifetime, long after its agents forgot it."""
    with debugged(lab, alice, wrap="timeout 8 sh -c 'while :; do :; done'; true") as job:
        lab.wait_job_state(job, "COMPLETED", 60)
    answer = eventually(
        lambda: top(alice, job, "--duration", "5m"),
        lambda seen: (
            seen.get("state") == "completed"
            and cell(seen, "cpu_utilization").get("value") is not None
        ),
    )
    assert 10 < cell(answer, "cpu_utilization")["value"] <= 120
    assert row(answer)["kind"] == "summary"


@pytest.mark.spec("SRC-2")
def test_a_pending_job_has_nothing_to_show(lab: Lab, alice: Person) -> None:
    job = lab.sbatch("alice", "--begin=now+1hour", wrap="true")
    try:
        said = eventually(
            lambda: alice.tries("top", str(job), "--once"), lambda said: "No alloc" not in said.err
        )
        assert said.code != 0
        assert "start" in said.err or "pending" in said.err
    finally:
        lab.run_as("alice", ["scancel", str(job)])
