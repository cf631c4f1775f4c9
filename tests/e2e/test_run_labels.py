"""The real SDK of OpenTelemetry in ranks of a real array task; the program names nothing here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.helper import NODE_PYTHON
from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_TRAINING = """import json
from importlib.metadata import entry_points
from opentelemetry.sdk.trace import TracerProvider

# As MLflow does at the start of a run.
(found,) = entry_points(group="mlflow.run_context_provider", name="lattice")
provider = found.load()()
shown = {"span": dict(TracerProvider().resource.attributes)}
shown["run"] = provider.tags() if provider.in_context() else {}
print(json.dumps(shown), flush=True)
"""


def test_spans_and_runs_name_the_allocation_that_lattice_shows(
    quiet_lab: Lab, alice: Person
) -> None:
    quiet_lab.run_as("alice", ["sh", "-c", "cat >train.py"], input=_TRAINING, check=True)
    job = quiet_lab.sbatch(
        "alice",
        *("--mem=256", "--nodelist=n1,n2", "-N2", "-n2", "--array=4", "--output=labels-%A"),
        wrap=f"export OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=lattice; srun {NODE_PYTHON} train.py",
    )

    def said() -> list[dict[str, Any]]:
        text = quiet_lab.run_as("alice", ["cat", f"labels-{job}"]).stdout
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    ranks = eventually(said, lambda found: len(found) == 2)
    card = alice.card(f"{job}_4")["allocation"]
    for each in ranks:
        span = each["span"]
        assert span["lattice.allocation.id"] == card["id"] == f"{job}_4"
        assert span["lattice.allocation.attempt"] == card["attempt"]
        assert span["slurm.job.nodes"] == card["nodes"] == "n[1-2]"
        labels = {name: value for name, value in span.items() if name in each["run"]}
        assert each["run"] == {name: str(value) for name, value in labels.items()}
    places = {(each["span"]["slurm.node.name"], each["span"]["slurm.task.rank"]) for each in ranks}
    assert places == {("n1", 0), ("n2", 1)}
