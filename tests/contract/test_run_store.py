"""What every store of runs promises: the fake, MLflow over REST, and MLflow's SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from lattice.adapters.http_store import HttpAddress
from lattice.adapters.mlflow.store import MlflowRunStore
from lattice.base.clock import SystemClock
from lattice.domain.training_run import (
    LOADED_TAG,
    SAVED_TAG,
    RunPoint,
    RunStore,
    StoredTraining,
)
from lattice.observe.mlflow_file import MlflowFile
from tests.fakes.in_memory_runs import InMemoryRunStore
from tests.mlflow_server import MlflowServer, mlflow_server

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]

REAL = [pytest.param(name, marks=[pytest.mark.lab, pytest.mark.long]) for name in ("rest", "file")]
_numbers = count(4201)
BEGAN = datetime(2026, 11, 15, 12, tzinfo=UTC)
Log = Callable[[str, Mapping[str, str], datetime, Mapping[str, Sequence[float]]], str]
"""Logs a run that is still running, with its values one second apart, and returns its id."""


class FileStore:
    """The file as the port: a command asks it without waiting."""

    def __init__(self, file: Path) -> None:
        self._file = MlflowFile(file)

    async def of_job(self, job_id: int) -> tuple[StoredTraining, ...]:
        return self._file.of_job(job_id)

    async def named(self, name: str) -> tuple[StoredTraining, ...]:
        return self._file.named(name)

    async def with_checkpoint(self, tag: str, checksum: str) -> tuple[StoredTraining, ...]:
        return self._file.with_checkpoint(tag, checksum)

    async def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        return self._file.history(run, metric)

    def link(self, run: StoredTraining) -> str:  # noqa: ARG002 - a file has no pages
        return ""


@dataclass
class Place:
    """A store, and how a training logs a run there."""

    store: RunStore
    log: Log


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(params=["memory", *REAL])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "memory":
        fake = InMemoryRunStore()
        yield Place(fake, _log_in(fake))
        return
    server = request.getfixturevalue("server")
    if request.param == "file":
        yield Place(FileStore(server.file), _log_on(server))
        return
    store = MlflowRunStore(HttpAddress(url=server.url), SystemClock(), answer_s=30.0)
    yield Place(store, _log_on(server))
    await store.aclose()


def _log_in(fake: InMemoryRunStore) -> Log:
    def log(
        name: str,
        tags: Mapping[str, str],
        started: datetime,
        values: Mapping[str, Sequence[float]],
    ) -> str:
        points = {
            metric: tuple(
                RunPoint(started + timedelta(seconds=step), step, value)
                for step, value in enumerate(series)
            )
            for metric, series in values.items()
        }
        return fake.add(name, tags, started, metrics=points, experiment="Default").id

    return log


def _log_on(server: MlflowServer) -> Log:
    def log(
        name: str,
        tags: Mapping[str, str],
        started: datetime,
        values: Mapping[str, Sequence[float]],
    ) -> str:
        begin = round(started.timestamp() * 1000)
        named = [{"key": key, "value": value} for key, value in tags.items()]
        named.append({"key": "mlflow.user", "value": "alice"})
        made = server.post(
            "runs/create", experiment_id="0", run_name=name, start_time=begin, tags=named
        )
        run = str(made["run"]["info"]["run_id"])
        points = [
            {"key": metric, "value": value, "timestamp": begin + 1000 * step, "step": step}
            for metric, series in values.items()
            for step, value in enumerate(series)
        ]
        server.post("runs/log-batch", run_id=run, metrics=points)
        return run

    return log


async def test_runs_of_a_job_come_back_as_they_were_logged(place: Place) -> None:
    job_id = next(_numbers)
    tags = {"slurm.job.id": str(job_id), "slurm.cluster.name": "alpha"}
    fit = place.log("fit", tags, BEGAN, {"loss": [0.5, 0.25], "lr": [0.1]})
    test = place.log("fit", tags, BEGAN + timedelta(minutes=5), {"loss": [0.3]})
    place.log("fit", {"slurm.job.id": f"{job_id}0"}, BEGAN, {"loss": [9.0]})
    found = await place.store.of_job(job_id)
    assert [each.id for each in found] == [test, fit]
    run = found[1]
    assert (run.name, run.experiment, run.user) == ("fit", "Default", "alice")
    assert (run.status, run.started, run.ended) == ("running", BEGAN, None)
    assert tags.items() <= dict(run.tags).items()
    assert [(each.name, each.value, each.step) for each in run.metrics] == [
        ("loss", 0.25, 1),
        ("lr", 0.1, 0),
    ]


@pytest.mark.parametrize("name", ["resnet 7", "it's", 'a "b"', "100%_x", "ünï—🙂", "a' OR '1'='1"])
async def test_a_run_is_found_by_any_name_and_by_its_id(place: Place, name: str) -> None:
    run = place.log(name, {"slurm.job.id": "4301"}, BEGAN, {"loss": [1.0]})
    assert run in [each.id for each in await place.store.named(name)]
    assert [each.name for each in await place.store.named(run)] == [name]
    assert await place.store.named(name + "?") == ()


async def test_a_checkpoint_leads_to_those_who_wrote_and_loaded_it(place: Place) -> None:
    first, second = f"{next(_numbers):064x}", f"{next(_numbers):064x}"
    wrote = place.log("one", {SAVED_TAG: f"{first}, sha256:{second.upper()}"}, BEGAN, {})
    loaded = place.log("two", {LOADED_TAG: second}, BEGAN + timedelta(minutes=1), {})
    place.log("bad", {SAVED_TAG: f"x{first}"}, BEGAN, {})
    for checksum in (first, second):
        found = await place.store.with_checkpoint(SAVED_TAG, checksum)
        assert [each.id for each in found] == [wrote]
    (found_two,) = await place.store.with_checkpoint(LOADED_TAG, second)
    assert (found_two.id, found_two.loaded, found_two.saved) == (loaded, (second,), ())
    assert await place.store.with_checkpoint(LOADED_TAG, first) == ()


async def test_a_history_is_in_the_order_of_time(place: Place) -> None:
    values = [1.0 / (step + 1) for step in range(500)]
    run = place.log("long", {"slurm.job.id": "4401"}, BEGAN, {"loss": values})
    points = await place.store.history(run, "loss")
    assert [each.value for each in points] == values
    assert [each.step for each in points] == list(range(500))
    assert points[-1].time == BEGAN + timedelta(seconds=499)


async def test_what_is_not_there_is_empty(place: Place) -> None:
    place.log("other", {}, BEGAN, {"loss": [1.0]})
    assert await place.store.of_job(999) == ()
    assert await place.store.named("no such run") == ()
