"""Two runs beside each other: what differs, and how sure that is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.e2e.topped import debugged
from tests.eventually import eventually

# MLflow's own tables, as far as they are read. It is run as alice, who owns the file.
LOGS_RUN = """import sqlite3, sys
from datetime import datetime

job, begun, epoch_s, loaded, saved = sys.argv[1:]
begin = round(datetime.fromisoformat(begun).timestamp() * 1000)
base = sqlite3.connect("runs.db")
base.executescript('''
CREATE TABLE IF NOT EXISTS experiments (experiment_id, name);
CREATE TABLE IF NOT EXISTS runs (run_uuid, name, user_id, status, start_time, end_time,
  lifecycle_stage, experiment_id);
CREATE TABLE IF NOT EXISTS tags (key, value, run_uuid);
CREATE TABLE IF NOT EXISTS params (key, value, run_uuid);
CREATE TABLE IF NOT EXISTS metrics (key, value, timestamp, step, is_nan, run_uuid);
CREATE TABLE IF NOT EXISTS latest_metrics (key, value, timestamp, step, is_nan, run_uuid);
''')
run = f"run{job}"
base.execute("INSERT INTO runs VALUES (?, ?, 'alice', 'FINISHED', ?, ?, 'active', 0)",
             (run, f"fit-{job}", begin + 10, begin + 24000))
tags = {"slurm.job.id": job, "checkpoint.loaded.sha256": loaded, "checkpoint.saved.sha256": saved}
base.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(*each, run) for each in tags.items()])
for epoch in range(20):
    time = begin + 1000 + round(1000 * float(epoch_s) * (epoch + 1)) + epoch % 3
    for key, value in (("epoch", epoch), ("loss", 1 / (epoch + 1))):
        row = (key, value, time, epoch, 0, run)
        base.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
for key in ("epoch", "loss"):
    row = (key, 0, time, 19, 0, run)
    base.execute("INSERT INTO latest_metrics VALUES (?, ?, ?, ?, ?, ?)", row)
base.commit()
"""

pytestmark = pytest.mark.lab


@pytest.mark.story
@pytest.mark.spec("COMPARE-1", "COMPARE-2", "COMPARE-3", "RUN-2")
def test_two_runs_that_use_different_memory(lab: Lab, alice: Person, bob: Person) -> None:
    """Both were measured closely, and are over: nobody switches anything for them any more."""
    with ExitStack() as both:
        jobs = []
        for node, size in (("n1", 40), ("n2", 80)):
            work = f"/usr/bin/python3 -c 'import time; x = bytearray({size} << 20); time.sleep(25)'"
            running = debugged(lab, alice, "-w", node, f"--mem={size * 4}M", wrap=work)
            jobs.append(str(both.enter_context(running)))
        for job in jobs:
            lab.wait_job_state(int(job), "COMPLETED", 60)
    (memory,) = eventually(
        lambda: alice.asks("compare", *jobs, "--metric", "memory_used")["metrics"],
        lambda found: [each["sureness"] for each in found[0]["differences"]] == ["sure"],
    )
    (one,) = memory["differences"]
    assert one["change"]["absolute"] == pytest.approx(40 << 20, rel=0.05)
    assert {each["step_s"] for each in memory["lines"]} == {1.0}
    _trainings(lab, alice, jobs)
    failed = alice.tries("compare", *jobs, "--fail-on", "memory_used>20%")
    assert failed.code == 113, failed
    passed = alice.tries("compare", *jobs, "--fail-on", "memory_used<-20%")
    assert passed.code == 0, passed
    refused = {
        (tried.code, tried.err.replace("999999", "ID").replace(jobs[0], "ID"))
        for first in (jobs[0], "999999")
        for tried in [bob.tries("compare", first, jobs[1])]
    }
    assert len(refused) == 1


def _trainings(lab: Lab, alice: Person, jobs: list[str]) -> None:
    """Runs in a file of MLflow's form, as if both jobs had logged 20 epochs: B takes longer."""
    home = lab.run_as("alice", ["pwd"]).stdout.strip()
    lab.run_as("alice", ["rm", "-f", "runs.db"])
    for job, epoch_s, loaded, saved in ((jobs[0], 0.8, "", "a"), (jobs[1], 1.0, "a", "b")):
        begun = alice.card(job)["allocation"]["started"]
        words = ["python3", "-c", LOGS_RUN, job, begun, str(epoch_s), 64 * loaded, 64 * saved]
        lab.run_as("alice", words, check=True)
    file = ("--mlflow", f"{home}/runs.db")
    text = " ".join(alice.tries("compare", *jobs, "--metric", "memory_used", *file).out.split())
    assert "An epoch of B takes 25 % longer" in text, text
    assert "Measured at the same time: memory_used" in text, text
    chain = alice.tries("runs", jobs[1], "--lineage", *file).out
    assert f"{'a' * 12} of fit-{jobs[0]}" in chain, chain
