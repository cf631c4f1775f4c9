"""What OpenTelemetry and MLflow find by entry points: the real SDK, and MLflow's contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distribution, entry_points
from pathlib import Path
from typing import Any

import pytest

import lattice
import lattice_run
from lattice_run.facts import attributes

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "packages" / "lattice-run"
_TRAINING = """
import json
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

spans = TracerProvider().resource
named = TracerProvider(resource=Resource.create({"service.name": "train"})).resource
logs = LoggerProvider().resource
metrics = MeterProvider()._sdk_config.resource
print(json.dumps([dict(each.attributes) for each in (spans, named, logs, metrics)]))
"""
"""Names nothing of Lattice."""


def plugs(group: str) -> list[EntryPoint]:
    return [each for each in entry_points(group=group) if each.name == "lattice"]


def recorded(case: str) -> dict[str, str]:
    file = ROOT / "tests" / "fixtures" / "run" / "slurm-26.05.json"
    environment = json.loads(file.read_text())[case][0]["environment"]
    return dict(environment)


def train(**environment: str) -> tuple[list[dict[str, Any]], str]:
    base = {"PATH": os.environ["PATH"], "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "lattice"}
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING],
        env=base | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout), done.stderr


@pytest.mark.spec("RUN-1")
def test_spans_metrics_and_logs_of_a_task_name_it() -> None:
    environment = recorded("array-step")
    resources, said = train(**environment)
    assert said == ""
    expected = attributes(environment, "")
    assert str(expected["lattice.allocation.id"]).startswith("3_")
    for each in resources:
        assert each.items() >= expected.items()
    assert resources[1]["service.name"] == "train"


def test_what_the_person_names_has_precedence() -> None:
    mine = {"OTEL_RESOURCE_ATTRIBUTES": "lattice.tenant=mine", "LATTICE_TENANT": "site"}
    resources, _ = train(**recorded("plain-step"), **mine)
    assert resources[0]["lattice.tenant"] == "mine"


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize(
    "environment",
    [{}, {"SLURM_JOB_ID": "none"}, {"SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "\udce9"}],
    ids=["outside", "no-number", "no-utf8"],
)
def test_a_training_that_is_in_no_proper_job_hears_nothing(environment: dict[str, str]) -> None:
    resources, said = train(**environment)
    assert said == ""
    for each in resources:
        assert "slurm.job.name" not in each


class Registry:
    """As in mlflow.tracking.context.registry: made without arguments, asked at each new run."""

    def __init__(self) -> None:
        self._providers = [each.load()() for each in plugs("mlflow.run_context_provider")]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._providers)

    def resolve_tags(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for provider in self:
            if provider.in_context():
                found.update(provider.tags())
        return found


@pytest.mark.spec("RUN-1")
def test_a_run_is_tagged_with_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    assert len(list(registry)) == 1
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    assert registry.resolve_tags() == {}
    for name, value in recorded("run-step1").items():
        monkeypatch.setenv(name, value)
    tags = registry.resolve_tags()
    assert tags["lattice.allocation.attempt"] == "2"
    assert tags["lattice.allocation.id"] == tags["slurm.job.id"]
    assert tags["slurm.job.nodes"]
    assert all(isinstance(each, str) for each in tags.values())


def test_it_needs_nothing_and_goes_into_older_environments() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert project["requires-python"] == ">=3.10"
    assert distribution("lattice-run").requires in (None, [])
    program = (
        "import sys; before = set(sys.modules); import lattice_run.facts, lattice_run.mlflow;"
        "lattice_run.mlflow.JobContext().tags(); print(*(set(sys.modules) - before))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert not {"lattice", "mlflow", "opentelemetry", "asyncio", "socket"} & set(shown.split())


def test_it_is_released_with_lattice() -> None:
    assert lattice_run.__version__ == lattice.__version__
    assert (PACKAGE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in ("otel", "mlflow"):
        assert extras["optional-dependencies"][name] == ["lattice-run"]
