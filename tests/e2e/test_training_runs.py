"""A real training client of MLflow in a requeued job: the run and the job find each other."""

from __future__ import annotations

import signal
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lab.laboratory import Lab
from tests.e2e.mlflow_lab import MLFLOW_FILE, MLFLOW_PATIENCE_S, asking_mlflow, mlflow_of
from tests.e2e.people import Person
from tests.eventually import eventually
from tests.mlflow_server import mlflow_environment

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(1500)]

# It names neither Slurm nor Lattice.
TRAINING = """import pathlib, time
import mlflow

kept = pathlib.Path("run-id")
resumed = kept.read_text() if kept.exists() else None
with mlflow.start_run(run_id=resumed, run_name=None if resumed else "resnet-fit") as run:
    for step in range(20):
        mlflow.log_metric("loss", 1.0 / (20 * bool(resumed) + step + 1), step=step)
        mlflow.log_metric("epoch", step // 10, step=step)
    if not resumed:
        kept.write_text(run.info.run_id)
        time.sleep(600)
with mlflow.start_run(run_name="resnet-test"):
    mlflow.log_metric("loss", 0.5)
"""


def test_a_run_and_its_allocation_find_each_other(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    lab = quiet_lab
    environment = mlflow_environment(Path(sys.prefix) / "share")
    home = Path(lab.run_as("alice", ["pwd"]).stdout.strip())
    for name in (MLFLOW_FILE, "run-id", "mlruns", "train.py"):
        lab.run_as("alice", ["rm", "-rf", name])
    lab.run_as("alice", ["sh", "-c", "cat >train.py"], input=TRAINING, check=True)
    with (
        mlflow_of(lab, environment / "bin" / "mlflow", home) as process,
        asking_mlflow(lab),
    ):
        alice.logged_in()
        bob.logged_in()
        job = _trained(lab, environment / "bin" / "python", home)
        _runs(alice, bob, job)
        _status(alice, job)
        _timeline(lab, alice, bob, job)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        _away(alice, job)
    _from_file(alice, job, home)


def _trained(lab: Lab, python: Path, home: Path) -> int:
    """Two attempts of one run, and then another run."""
    uri = f"sqlite:///{home / MLFLOW_FILE}"
    job = lab.sbatch(
        "alice",
        *("--mem=1G", "--nodelist=n1", "--requeue", "--job-name=resnet", "--output=train-%j"),
        wrap=f"export MLFLOW_TRACKING_URI={uri}; exec {python} train.py",
    )

    def begun() -> str:
        return lab.run_as("alice", ["cat", "run-id"]).stdout

    eventually(
        begun,
        patience_s=MLFLOW_PATIENCE_S,
        pause_s=0.5,
    )
    lab.ctl(["scontrol", "requeue", str(job)])
    lab.start_requeued(job)
    lab.wait_job_state(job, "COMPLETED", MLFLOW_PATIENCE_S)
    return job


def _runs(alice: Person, bob: Person, job: int) -> None:
    # slurmdbd writes an attempt down some seconds after its end.
    eventually(
        lambda: alice.card(str(job))["allocation"]["attempts"],
        lambda found: len(found) == 2,
        pause_s=0.5,
    )
    found = alice.asks("runs", str(job))
    assert [(each["name"], each["attempts"]) for each in found["runs"]] == [
        ("resnet-test", [2]),
        ("resnet-fit", [1, 2]),
    ]
    assert found["sources"][0]["ok"]
    (named,) = alice.asks("runs", "--name", "resnet-fit")["runs"]
    assert named["allocation"].partition("@")[0] == str(job)
    assert named["status"] == "finished"
    # Of what another person has, not even the name is found.
    assert bob.tries("runs", str(job)).code == 102
    assert bob.asks("runs", "--name", "resnet-fit")["runs"] == []


def _status(alice: Person, job: int) -> None:
    # A card waits one second for MLflow.
    text = eventually(
        lambda: alice.tries("status", str(job)).out, lambda out: "resnet-fit (finished" in out
    )
    assert "resnet-test (finished, loss 0.5)" in text


def _timeline(lab: Lab, alice: Person, bob: Person, job: int) -> None:
    found = alice.asks("timeline", str(job))
    assert [(each["kind"], each["attempt"]) for each in found["phases"]] == [
        ("waiting", 1),
        ("running", 1),
        ("waiting", 2),
        ("running", 2),
    ]
    lines = {each["name"]: each for each in found["lines"] if each["run"]}
    assert {"loss", "epoch"} <= lines.keys()
    fit = [each for each in found["lines"] if each["name"] == "loss" and len(each["points"]) > 1]
    assert [len(each["points"]) for each in fit] == [40]
    begin, until = (datetime.fromisoformat(found[name]) for name in ("begin", "until"))
    times = [datetime.fromisoformat(each["time"]) for each in fit[0]["points"]]
    # Slurm's times are whole seconds.
    assert begin <= times[0] <= times[-1] <= until + timedelta(seconds=1)
    text = alice.tries("timeline", str(job)).out
    assert "attempt 2" in text
    assert "resnet-fit loss" in text
    alice.tries("timeline", str(job), "--html", "run.html")
    page = lab.run_as("alice", ["cat", "run.html"]).stdout
    assert page.startswith("<!doctype html>")
    assert "<polyline" in page
    assert "://" not in page
    assert bob.tries("timeline", str(job)).code == 102


def _away(alice: Person, job: int) -> None:
    """Nothing but the runs is missing."""
    tried = eventually(lambda: alice.tries("runs", str(job)), lambda each: each.code == 75)
    assert "MLflow does not answer" in tried.err
    card = alice.asks("status", str(job))
    assert card["allocation"]["state"] == "completed"
    assert card["runs"] == []
    found = alice.asks("timeline", str(job))
    assert len(found["phases"]) == 4
    assert any("MLflow does not answer" in each for each in found["missing"])


def _from_file(alice: Person, job: int, home: Path) -> None:
    """Without a server of MLflow, from the file that the training wrote."""
    alice.logged_in()
    found = eventually(lambda: alice.tries("runs", str(job)), lambda said: said.code == 0)
    assert "names no MLflow server" in found.err
    found = alice.tries("runs", str(job), "--mlflow", str(home / MLFLOW_FILE))
    assert "resnet-fit" in found.out
    assert "1, 2" in found.out
    found = alice.tries("runs", "--name", "resnet-fit", "--mlflow", str(home / MLFLOW_FILE))
    assert str(job) in found.out
