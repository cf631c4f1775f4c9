"""MLflow's own client and server, and a whole lattice-server: run and allocation find each other.

The client has the environment of a job that was requeued. `lattice-run` is installed there, and the
training names neither Slurm nor Lattice.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lattice.adapters.http_store import HttpAddress
from lattice.adapters.mlflow.store import MlflowRunStore
from lattice.base.clock import SystemClock
from lattice.domain.allocation import Attempt, State
from lattice.domain.families import with_attempts
from lattice.domain.training_run import runs_of
from lattice.observe.mlflow_file import MlflowFile
from tests.fakes.cluster import allocation, populated
from tests.fakes.server import bearer, composed
from tests.mlflow_server import MlflowServer, mlflow_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

JOB = 4242
_TRAINING = """import sys
import mlflow

resumed = sys.argv[1] if len(sys.argv) > 1 else None
with mlflow.start_run(run_id=resumed, run_name=None if resumed else "resnet-fit") as run:
    for step in range(30):
        mlflow.log_metric("loss", 1.0 / (step + 1), step=step + 30 * bool(resumed))
    print(run.info.run_id, flush=True)
    if not resumed:
        # As a node that fails ends it: MLflow does not learn of it.
        import os
        os._exit(0)
with mlflow.start_run(run_name="resnet-test"):
    mlflow.log_metric("loss", 0.5)
"""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


class Trained:
    """Job 4242 of alice: attempts 1 and 2 and what each of them printed."""

    def __init__(self, server: MlflowServer) -> None:
        self.server = server
        self.submitted = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=30)
        self.started = datetime.now(UTC)
        self.run = self._train(restarts=0)
        self.requeued = datetime.now(UTC) + timedelta(seconds=1)
        self._train(self.run, restarts=1)

    def _train(self, *resumed: str, restarts: int) -> str:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SLURM_")
        }
        environment |= {
            "MLFLOW_TRACKING_URI": self.server.url,
            "SLURM_JOB_ID": str(JOB),
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        program = self.server.environment / "bin" / "python"
        done = subprocess.run(
            [program, "-c", _TRAINING, *resumed],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        return next(each for each in done.stdout.split() if len(each) == 32)

    def job(self) -> Any:
        first = Attempt(
            number=1,
            state=State.NODE_FAIL,
            submitted=self.submitted,
            started=self.started,
            ended=self.requeued,
            nodes="n1",
            node_count=1,
        )
        return allocation(
            JOB,
            "alice",
            "research",
            submitted=self.requeued,
            first_submitted=self.submitted,
            started=self.requeued,
            attempt=2,
            attempts=(first,),
        )


@pytest.fixture(scope="module")
def trained(mlflow: MlflowServer) -> Trained:
    return Trained(mlflow)


@pytest.fixture
async def rest(trained: Trained) -> AsyncIterator[httpx2.AsyncClient]:
    scheduler = populated(SystemClock())
    scheduler.allocations.append(trained.job())
    store = MlflowRunStore(HttpAddress(url=trained.server.url), SystemClock(), answer_s=30.0)
    transport = httpx2.ASGITransport(app=composed(scheduler, run_store=store).rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client
    await store.aclose()


async def asked(rest: httpx2.AsyncClient, path: str, user: str = "alice") -> Any:
    headers = bearer(f"sub-{user}", preferred_username=user)
    answer = await rest.get(f"/v1/{path}", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_allocation_has_both_runs_with_their_attempts(
    rest: httpx2.AsyncClient, trained: Trained
) -> None:
    # A card waits a second for MLflow, which may have nothing in its memory yet.
    found = await asked(rest, f"allocations/{JOB}/runs")
    assert [(each["name"], each["status"], each["attempts"]) for each in found["runs"]] == [
        ("resnet-test", "finished", [2]),
        ("resnet-fit", "finished", [1, 2]),
    ]
    assert found["runs"][1]["id"] == trained.run
    assert found["runs"][1]["link"].endswith(trained.run)
    card = await asked(rest, f"allocations/{JOB}?runs=true")
    assert [each["name"] for each in card["runs"]] == ["resnet-test", "resnet-fit"]


async def test_a_run_leads_to_its_allocation_and_nobody_else_to_it(
    rest: httpx2.AsyncClient,
) -> None:
    (found,) = (await asked(rest, "runs?name=resnet-fit"))["runs"]
    assert found["allocation"].partition("@")[0] == str(JOB)
    assert (await asked(rest, "runs?name=resnet-fit", "bob"))["runs"] == []


async def test_the_loss_is_on_the_axis_of_the_attempts(
    rest: httpx2.AsyncClient, trained: Trained
) -> None:
    found = await asked(rest, f"allocations/{JOB}/timeline")
    kinds = [(each["kind"], each["attempt"]) for each in found["phases"]]
    assert kinds == [("waiting", 1), ("running", 1), ("waiting", 2), ("running", 2)]
    (loss,) = [
        each for each in found["lines"] if each["run"] == trained.run and each["name"] == "loss"
    ]
    assert len(loss["points"]) == 60
    times = [datetime.fromisoformat(each["time"]) for each in loss["points"]]
    assert sorted(times) == times
    assert trained.started <= times[0] < trained.requeued < times[-1]


def test_the_same_is_in_the_file(trained: Trained) -> None:
    file = MlflowFile(Path(trained.server.file))
    job = with_attempts(trained.job(), None)
    found = runs_of(job, file.of_job(JOB), datetime.now(UTC))
    assert [(each.name, each.attempts) for each in found] == [
        ("resnet-test", (2,)),
        ("resnet-fit", (1, 2)),
    ]
    assert len(file.history(trained.run, "loss")) == 60
