"""The real SDK of OpenTelemetry in ranks of a real array task; the program names nothing here.

Each rank writes its spans into a file of its own, in another form.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from lab.helper import NODE_PYTHON
from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_TRAINING = """import json, os, pathlib, time
from importlib.metadata import entry_points
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

# As MLflow does at the start of a run.
(found,) = entry_points(group="mlflow.run_context_provider", name="lattice")
provider = found.load()()
shown = {"span": dict(TracerProvider().resource.attributes)}
shown["run"] = provider.tags() if provider.in_context() else {}
rank = os.environ["SLURM_PROCID"]
folder = pathlib.Path("spans", os.environ["SLURM_JOB_ID"])
folder.mkdir(parents=True, exist_ok=True)
form = {} if rank == "0" else {"formatter": lambda span: span.to_json(indent=None) + "\\n"}
traces = TracerProvider()
out = (folder / f"rank-{rank}.json").open("a")
traces.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, **form)))
tracer = traces.get_tracer("train")
with tracer.start_as_current_span("fit") as fit:
    for epoch in range(2):
        with tracer.start_as_current_span("train.epoch"):
            time.sleep(0.5)
            with tracer.start_as_current_span("checkpoint.save"):
                time.sleep(0.2)
    fit.add_event("early_stopping", {"patience": 3})
print(json.dumps(shown), flush=True)
"""


@pytest.mark.story
@pytest.mark.spec("RUN-1", "RUN-3")
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
    _timeline(quiet_lab, alice, f"{job}_4")


def _timeline(lab: Lab, alice: Person, job: str) -> None:
    """What both ranks have written stands on the axis of the job."""
    found = alice.asks("timeline", job, "--spans", "spans/%j")
    assert not [each for each in found["missing"] if "Spans" in each]
    shown = [(each["name"], each["kind"], each["depth"], each["count"]) for each in found["spans"]]
    assert shown == [
        ("fit", "span", 0, 2),
        ("train.epoch", "epoch", 1, 2),
        ("checkpoint.save", "checkpoint", 2, 4),
    ]
    epochs = found["spans"][1]
    assert (epochs["rank"], epochs["each"], len(epochs["stretches"])) == (0, True, 2)
    assert epochs["total_s"] >= 1.4
    begin, until = (datetime.fromisoformat(found[name]) for name in ("begin", "until"))
    times = [datetime.fromisoformat(epochs[name]) for name in ("first", "last")]
    # Slurm's times are whole seconds.
    assert begin <= times[0] < times[1] <= until + timedelta(seconds=1)
    (stopped,) = found["marks"]
    assert (stopped["name"], stopped["count"], stopped["text"]) == (
        "early_stopping",
        2,
        "patience 3",
    )
    assert all(each["named"] for each in (*found["spans"], *found["marks"]))
    text = alice.tries("timeline", job, "--spans", "spans/%j").out
    assert "checkpoint.save" in text
    alice.tries("timeline", job, "--spans", "spans/%j", "--html", "spans.html")
    page = lab.run_as("alice", ["cat", "spans.html"]).stdout
    assert "early_stopping" in page
    assert "train.epoch" in page
