"""A real PyTorch training on two nodes: Lattice finds its runs, and tells a slowed one apart."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.addresses import CONTROL
from lab.laboratory import Lab
from tests.e2e.mlflow_lab import MLFLOW_PORT, asking_mlflow, mlflow_of
from tests.e2e.people import Person
from tests.eventually import eventually
from tests.mlflow_server import mlflow_environment
from tests.training_environment import training_environment

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("torch_training.py")
PATIENCE_S = 400.0
"""PyTorch and MLflow take half a minute to import on a busy machine."""
EPOCHS, SLOW_FROM = 26, 12
SCRIPT = """#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 --mem=1500M --output=train-%j.txt
export MLFLOW_TRACKING_URI=http://{address}:{port} MASTER_ADDR=n1 MASTER_PORT=29517
export OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=lattice
exec srun {python} -u train.py "$@"
"""


class Trainings:
    """Jobs of alice, one after the other."""

    def __init__(self, lab: Lab, alice: Person) -> None:
        self.lab, self.alice = lab, alice
        self.home = lab.layout.home / "alice"

    def submit(self, *words: str) -> int:
        """A job that runs and is measured every second."""
        submitted = self.alice.tries(
            "submit", "--vcluster", "interactive", "-J", "torch", "train.sh", *words
        )
        found = re.fullmatch(r"Submitted allocation ([0-9]+)\n", submitted.out)
        assert found, submitted
        job = int(found[1])
        self.lab.wait_job_state(job, "RUNNING", 60)
        eventually(
            lambda: self.alice.tries("telemetry", str(job), "--mode", "debug"),
            lambda switched: switched.code == 0,
        )
        return job

    def train(self, *words: str) -> int:
        """A job that has ended."""
        job = self.submit(*words)
        self.lab.wait_job_state(job, "COMPLETED", PATIENCE_S)
        return job

    def epochs(self, job: int) -> int:
        """How many rank 0 has ended, by its own spans."""
        spans = self.home / "spans" / str(job) / "rank-0.jsonl"
        return spans.read_text().count('"name": "train.epoch"') if spans.exists() else 0


@contextmanager
def slowed(lab: Lab) -> Iterator[None]:
    """The rank on n2 stands still for most of each second, as on a bad node, until it ends."""
    node = lab.slurm.nodes["n2"]
    rank = node.run(["pgrep", "-o", "-f", "train.py"]).stdout.strip()
    halting = f"while kill -STOP {rank}; do sleep 0.65; kill -CONT {rank}; sleep 0.35; done"
    argv = ["sh", "-c", f"({halting}) 2>/dev/null"]
    words = {"check": False, "timeout_s": PATIENCE_S}
    thread = threading.Thread(target=node.run, args=(argv,), kwargs=words, name="slows a rank")
    thread.start()
    try:
        yield
    finally:
        node.run(["kill", "-CONT", rank], check=False)
        thread.join()


@pytest.mark.spec("RUN-1", "RUN-2", "RUN-3")
def test_a_slowed_training_is_told_apart_by_epoch_and_metric(
    quiet_lab: Lab, alice: Person, bob: Person, tmp_path: Path
) -> None:
    lab = quiet_lab
    if lab.slurm.root is not None:
        pytest.skip("nodes with a root of their own have no PyTorch: the part `training` has it")
    python = training_environment() / "bin" / "python"
    program = mlflow_environment(Path(sys.prefix) / "share") / "bin" / "mlflow"
    home = Path(lab.run_as("alice", ["pwd"]).stdout.strip())
    lab.run_as("alice", ["sh", "-c", "rm -rf mlflow.db spans train.* *.pt"])
    script = SCRIPT.format(address=CONTROL, port=MLFLOW_PORT, python=python)
    for name, text in (("train.py", PROGRAM.read_text()), ("train.sh", script)):
        lab.run_as("alice", ["sh", "-c", f"cat >{name}"], input=text, check=True)
    with mlflow_of(lab, program, home, address=CONTROL), asking_mlflow(lab, address=CONTROL):
        alice.logged_in()
        bob.logged_in()
        trainings = Trainings(lab, alice)
        first = trainings.train("3", "first.pt")
        steady = trainings.train(str(EPOCHS), "steady.pt", "first.pt")
        job = trainings.submit(str(EPOCHS), "slow.pt", "first.pt")
        eventually(
            lambda: trainings.epochs(job),
            lambda ended: ended >= SLOW_FROM,
            patience_s=PATIENCE_S,
            pause_s=0.1,
        )
        with slowed(lab):
            lab.wait_job_state(job, "COMPLETED", PATIENCE_S)
        _found(alice, bob, steady)
        _compared(alice, steady, job)
        _lineage(alice, first, steady)
        _timeline(alice, steady)
        _pages(alice, steady, job, tmp_path)


def _found(alice: Person, bob: Person, job: int) -> None:
    """Run and allocation find each other."""
    runs = alice.asks("runs", str(job))["runs"]
    assert [each["name"] for each in runs] == ["test", "fit"]
    named = alice.asks("runs", "--name", "fit")["runs"]
    assert str(job) in [each["allocation"].partition("@")[0] for each in named]
    assert bob.asks("runs", "--name", "fit")["runs"] == []
    eventually(lambda: alice.tries("status", str(job)).out, lambda out: "fit (finished" in out)
    report = alice.asks("report", str(job))
    assert {each["name"] for each in report["runs"]} == {"fit", "test"}


def _compared(alice: Person, steady: int, job: int) -> None:
    answer = eventually(
        lambda: alice.asks("compare", str(steady), str(job)),
        # The last samples of a job arrive some seconds after its end.
        lambda found: (_times(found)["parting"] or {}).get("beside"),
        patience_s=60.0,
        pause_s=2.0,
    )
    parting = _times(answer)["parting"]
    assert abs(parting["at"] - SLOW_FROM) <= 2, parting
    assert parting["since"]["percent"] > 50, parting
    beside = {each["metric"]: each["change"]["percent"] for each in parting["beside"]}
    # Halted, it neither computes nor sends: the clearest of these differs from run to run.
    known = beside.keys() & {"cpu_utilization", "network_rx_bytes", "network_tx_bytes"}
    assert known, parting
    assert max(beside[each] for each in known) < -20, parting
    assert answer["trainings"]["parameters"] == []
    text = " ".join(alice.tries("compare", str(steady), str(job)).out.split())
    assert re.search(r"An epoch of B takes [0-9.]+ % longer", text), text
    assert f"from epoch {parting['at']} on. Measured at the same time:" in text, text


def _times(answer: Any) -> dict[str, Any]:
    (row,) = (
        each for each in answer["trainings"]["metrics"] if each["name"] == "seconds_per_epoch"
    )
    (one,) = row["differences"]
    return dict(one)


def _lineage(alice: Person, first: int, steady: int) -> None:
    """The first run wrote what two others loaded, and each of them was tested."""
    lineage = alice.asks("runs", str(steady), "--lineage")["lineage"]
    jobs = {each["id"]: each["allocation"].partition("@")[0] for each in lineage["runs"]}
    names = {each["id"]: each["name"] for each in lineage["runs"]}
    chain = {
        ((jobs[each["saved_by"]], names[each["saved_by"]]),
         (jobs[each["loaded_by"]], names[each["loaded_by"]]))
        for each in lineage["links"]
    }  # fmt: skip
    one, two = str(first), str(steady)
    assert {((one, "fit"), (two, "fit")), ((two, "fit"), (two, "test"))} <= chain
    assert len(lineage["runs"]) >= 5
    assert "of fit" in alice.tries("runs", str(steady), "--lineage").out


def _timeline(alice: Person, job: int) -> None:
    text = alice.tries("timeline", str(job), "--spans", "spans/%j").out
    assert "train.epoch" in text, text
    assert "fit loss" in text, text


def _pages(alice: Person, steady: int, job: int, folder: Path) -> None:
    """They stay where `--basetemp` says, for whoever wants to look at them."""
    alice.tries("timeline", str(job), "--spans", "spans/%j", "--html", "timeline.html")
    timeline = alice.lab.run_as("alice", ["cat", "timeline.html"]).stdout
    compared = alice.tries("compare", str(steady), str(job), "-o", "html").out
    for name, text in (("timeline", timeline), ("compare", compared)):
        assert text.startswith("<!doctype html>")
        assert "://" not in text
        (folder / f"{name}.html").write_text(text)
    (folder / "compare.txt").write_text(alice.tries("compare", str(steady), str(job)).out)
    (folder / "lineage.txt").write_text(alice.tries("runs", str(steady), "--lineage").out)
    words = ("timeline", str(job), "--spans", "spans/%j")
    (folder / "timeline.txt").write_text(alice.tries(*words).out)
