"""Training runs beside each other: where they part, and what was measured there."""

from __future__ import annotations

import csv
import io
import json
import random
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.fast_start import argv
from lattice.base.style import Style
from lattice.domain.measured import Shown
from lattice.domain.statistics.sureness import Sureness
from lattice.domain.training_run import RunPoint
from lattice.features.compare.command import COMPARE
from lattice.features.compare.model import Comparison, LoggedDifference, TrainingAxis
from lattice.features.compare.render.commas import commas
from lattice.features.compare.render.page import page
from lattice.features.compare.render.plain import comparison_text
from lattice.features.compare.training.epochs import MOST_CELLS, RunValues
from tests.fakes.in_memory_runs import InMemoryRunStore
from tests.fakes.shell import COMMON_OPTIONS, NOW, FakeShell
from tests.unit.features.compare.runs import BOB, CPU, Site, course
from tests.unit.observe.test_mlflow_file import TABLES

BEGIN = datetime(2026, 11, 15, 12, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[2J"
Lasts = Callable[[int], float]
"""The seconds of an epoch, by its number."""


class TrainedSite(Site):
    """Jobs 41 and 42, each with a run called `fit` of up to 55 epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = InMemoryRunStore()

    def train(
        self,
        number: int,
        lasts: Lasts = lambda _: 60.0,
        *,
        seed: int = 0,
        epochs: int = 55,
        by_step: bool = False,
        name: str = "fit",
        **logged: Any,
    ) -> None:
        draw = random.Random(100 * number + seed)
        begun = datetime.fromtimestamp(self.begun[str(number)], UTC)
        losses, times, counted = [], [], []
        at_s = 30.0
        for epoch in range(epochs):
            at_s += lasts(epoch) * draw.gauss(1.0, 0.02)
            if at_s > 3600:
                break
            time = begun + timedelta(seconds=at_s)
            losses.append(RunPoint(time, epoch, 2.0 / (epoch + 1) + draw.gauss(0.0, 0.01)))
            times.append(RunPoint(time, epoch, logged.get("lr", 0.1)))
            counted.append(RunPoint(time, epoch, float(epoch)))
        metrics = {"loss": tuple(losses), "lr": tuple(times), "peak_memory": losses[-1:]}
        if "also" in logged:
            metrics[logged["also"]] = losses
        if not by_step:
            metrics["epoch"] = tuple(counted)
        self.runs.add(
            name,
            {"slurm.job.id": str(number), "slurm.cluster.name": "lab"},
            begun + timedelta(seconds=5),
            ended=begun + timedelta(seconds=3600),
            metrics={each: tuple(points) for each, points in metrics.items()},
            parameters=logged.get("parameters", {"lr": "0.1", "seed": "7"}),
        )

    async def compare(self, *ids: str, **more: Any) -> Comparison:
        return await super().compare(*ids, **({"run_store": self.runs} | more))


def slowed(**logged: Any) -> TrainedSite:
    """B takes half as long again from epoch 20 on, and uses less CPU from then on."""
    site = TrainedSite()
    site.train(41)
    site.train(42, lambda epoch: 60.0 if epoch < 20 else 90.0, **logged)
    site.measure(41, course(400, seed=3, size=8), CPU)
    site.measure(42, course(400, seed=4, size=8, after_s=30 + 20 * 60, then=260), CPU)
    return site


def logged(answer: Comparison, name: str) -> LoggedDifference:
    assert answer.trainings is not None
    (row,) = (each for each in answer.trainings.metrics if each.name == name)
    return row.differences[0]


@pytest.mark.spec("RUN-2", "COMPARE-2")
@pytest.mark.parametrize("by_step", [False, True])
async def test_a_slowed_run_parts_at_its_epoch_with_what_was_measured_there(by_step: bool) -> None:
    site = TrainedSite()
    site.train(41, by_step=by_step)
    site.train(42, lambda epoch: 60.0 if epoch < 20 else 90.0, by_step=by_step)
    site.measure(41, course(400, seed=3, size=8), CPU)
    site.measure(42, course(400, seed=4, size=8, after_s=30 + 20 * 60, then=260), CPU)
    answer = await site.compare()
    axis = TrainingAxis.STEP if by_step else TrainingAxis.EPOCH
    one = logged(answer, f"seconds_per_{axis.value}")
    assert one.axis is axis
    assert one.sureness is Sureness.SURE
    assert one.parting is not None
    assert abs(one.parting.at - 20) <= 1
    assert not one.parting.whole
    assert one.parting.since is not None
    assert one.parting.since.percent == pytest.approx(50, abs=4)
    (measured,) = one.parting.beside
    assert measured.metric is Shown.CPU_UTILIZATION
    assert measured.change.percent == pytest.approx(-35, abs=4)
    assert logged(answer, "loss").parting is None
    assert logged(answer, "lr").sureness is Sureness.NONE_FOUND
    assert answer.trainings is not None
    (first,) = answer.trainings.partings
    assert first.names == (f"seconds_per_{axis.value}",)
    assert answer.trainings.parameters == ()


async def test_two_equal_runs_do_not_part() -> None:
    site = TrainedSite()
    for number in (41, 42):
        site.train(number)
        site.measure(number, course(400, seed=number, size=8), CPU)
    answer = await site.compare()
    assert answer.trainings is not None
    assert answer.trainings.partings == ()
    assert "No difference was found between the trainings A and B." in shown(answer)


async def test_what_parts_elsewhere_is_not_named_beside() -> None:
    site = slowed()
    site.measure(42, course(400, seed=4, size=8, after_s=30 + 8 * 60, then=260), CPU)
    one = logged(await site.compare(), "seconds_per_epoch")
    assert one.parting is not None
    assert one.parting.beside == ()
    assert "no measured metric parts there" in one.parting.reason


async def test_without_measurements_the_epoch_stands_with_the_reason() -> None:
    site = slowed()
    site.store.courses.clear()
    answer = await site.compare()
    one = logged(answer, "seconds_per_epoch")
    assert one.parting is not None
    assert abs(one.parting.at - 20) <= 1
    assert one.parting.beside == ()
    assert one.parting.reason.startswith("A: ")


async def test_epochs_shorter_than_the_interval_are_joined_and_too_few_are_a_reason() -> None:
    site = TrainedSite()
    for number, late in ((41, 8.0), (42, 12.0)):
        site.train(number, lambda epoch, late=late: 8.0 if epoch < 100 else late, epochs=200)
        site.measure(number, course(400, seed=number, size=4, after_s=830, then=50 * late), CPU)
    one = logged(await site.compare(), "seconds_per_epoch")
    assert one.parting is not None
    assert one.parting.at == pytest.approx(100, abs=4)
    assert [each.metric for each in one.parting.beside] == [Shown.CPU_UTILIZATION]
    site = TrainedSite()
    for number, late in ((41, 8.0), (42, 12.0)):
        site.train(number, lambda epoch, late=late: 8.0 if epoch < 15 else late, epochs=30)
        site.measure(number, course(400, seed=number), CPU)
    one = logged(await site.compare(), "seconds_per_epoch")
    assert one.parting is not None
    assert "too coarse" in one.parting.reason


@pytest.mark.parametrize("epochs", [1, 2, 9])
async def test_too_few_epochs_are_no_answer(epochs: int) -> None:
    site = TrainedSite()
    site.train(41)
    site.train(42, epochs=epochs)
    answer = await site.compare()
    assert answer.trainings is not None
    assert f"both logged {epochs} " in answer.trainings.runs[1].reason
    assert "it takes 10" in answer.trainings.runs[1].reason
    assert answer.trainings.partings == ()
    assert "it takes 10" in shown(answer)


async def test_parameters_that_differ_are_named_and_secrets_are_not() -> None:
    site = slowed(parameters={"lr": "0.2", "seed": "7", "depth": "3"})
    answer = await site.compare()
    assert answer.trainings is not None
    found = {
        each.name: [value.value for value in each.values] for each in answer.trainings.parameters
    }
    assert found == {"lr": ["0.1", "0.2"], "depth": [None, "3"]}


async def test_a_metric_that_was_logged_once_stands_without_a_judgement() -> None:
    one = logged(await slowed().compare(), "peak_memory")
    assert one.baseline is not None
    assert one.value is not None
    assert (one.change, one.sureness) == (None, Sureness.UNKNOWN)


async def test_a_job_with_fit_and_test_is_compared_by_fit() -> None:
    site = slowed()
    site.train(42, epochs=1, name="test")
    answer = await site.compare()
    assert answer.trainings is not None
    assert [(each.name, each.others) for each in answer.trainings.runs] == [("fit", 0), ("fit", 1)]


@pytest.mark.spec("COMPARE-3")
async def test_of_what_the_caller_may_not_see_no_run_is_asked_for() -> None:
    site = slowed()
    with pytest.raises(Exception, match="41"):
        await site.compare("41", "42", actor=BOB)
    assert site.runs.asked == []


async def test_a_site_without_a_run_store_has_no_part_for_it() -> None:
    answer = await slowed().compare(run_store=None)
    assert answer.trainings is None
    assert "TRAINING" not in shown(answer)


async def test_a_silent_store_is_named_once_and_the_rest_is_there() -> None:
    site = slowed()
    site.runs.reason = "it answered 503"
    answer = await site.compare()
    text = shown(answer)
    assert text.count("it answered 503") == 1
    assert "cpu_utilization" in text
    assert page(answer).count("it answered 503") == 1


async def test_values_that_are_not_sent_are_no_difference() -> None:
    site = slowed()
    site.runs.points.clear()
    answer = await site.compare()
    assert answer.trainings is not None
    assert [each.reason for each in answer.trainings.runs] == ["MLflow did not send its values"] * 2
    assert answer.trainings.metrics == ()


async def test_a_run_beside_a_job_without_one_is_named_with_the_reason() -> None:
    site = TrainedSite()
    site.train(42)
    answer = await site.compare()
    assert answer.trainings is not None
    assert [each.reason for each in answer.trainings.runs] == [
        "no run in MLflow names it",
        "nothing that A logged is known",
    ]


async def test_jobs_that_train_nothing_look_as_before() -> None:
    site = TrainedSite()
    site.measure(41, course(400, seed=3), CPU)
    site.measure(42, course(400, seed=4), CPU)
    with_store = shown(await site.compare())
    assert with_store == shown(await site.compare(run_store=None))


@pytest.mark.spec("RUN-2")
async def test_words_say_the_epoch_and_the_metric() -> None:
    text = " ".join(shown(await slowed(parameters={"lr": "0.2", "seed": "7"}).compare()).split())
    assert "An epoch of B takes" in text
    assert "from epoch" in text
    assert "Measured at the same time: cpu_utilization" in text
    assert "PARAMETER" in text
    html = page(await slowed().compare())
    assert "seconds_per_epoch" in html
    assert html.count("<svg") >= 4


async def test_a_sheet_has_a_line_for_each_logged_metric_and_run() -> None:
    answer = await slowed(parameters={"lr": "0.2", "seed": "7"}).compare()
    rows = list(csv.DictReader(io.StringIO(commas(answer))))
    (one,) = (each for each in rows if each["logged"] == "seconds_per_epoch" and each["run"] == "B")
    assert one["axis"] == "epoch"
    assert abs(int(one["parted_at"]) - 20) <= 1
    assert one["beside"] == "cpu_utilization"
    assert float(one["since_percent"]) == pytest.approx(50, abs=4)
    assert [each["value"] for each in rows if each["parameter"] == "lr"] == ["0.1", "0.2"]


async def test_hostile_names_are_only_text() -> None:
    site = TrainedSite()
    for number, value in ((41, "a"), (42, EVIL)):
        site.train(number, name=EVIL, parameters={EVIL: value}, also=EVIL)
    answer = await site.compare()
    for text in (shown(answer), page(answer), commas(answer)):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "<script" not in page(answer)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**62), 2**62),
            st.floats(allow_nan=False, allow_infinity=False, width=32),
            st.integers(-100, 10_000),
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_any_values_are_put_in_order_and_bounded(
    entries: list[tuple[int, float, int]], is_epoch: bool
) -> None:
    values = RunValues(BEGIN, BEGIN + timedelta(hours=1))
    points = [
        RunPoint(BEGIN + timedelta(seconds=at_s), step, value) for step, value, at_s in entries
    ]
    values.add("epoch" if is_epoch else "loss", points)
    values.add("other", points)
    for kind in TrainingAxis:
        axis = values.axis(kind)
        if axis is not None:
            assert list(axis.grid.cells) == sorted(axis.grid.cells)
            assert len(axis.grid.cells) <= MOST_CELLS


def test_a_long_run_is_joined_into_cells_of_a_power_of_two() -> None:
    values = RunValues(BEGIN, None)
    values.add("loss", [RunPoint(BEGIN + timedelta(seconds=at), at, 1.0) for at in range(20_000)])
    axis = values.axis(TrainingAxis.STEP)
    assert axis is not None
    assert axis.grid.width == 8
    assert sum(each.count for each in axis.grid.cells.values()) == 20_000


# From a file.


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(COMPARE, words)
    assert values is not None
    return COMPARE.run(
        shell, **{name: each for name, each in values.items() if name not in COMMON_OPTIONS}
    )


def sent(answer: Comparison) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(answer))
    return found


def written(path: Path, site: TrainedSite) -> Path:
    """The same runs as MLflow's file."""

    def milliseconds(time: datetime) -> int:
        return round(time.timestamp() * 1000)

    with closing(sqlite3.connect(path)) as base:
        base.executescript(TABLES)
        for table in ("runs", "tags", "metrics", "latest_metrics", "params"):
            base.execute(f"DELETE FROM {table}")
        for each in site.runs.runs:
            ended = milliseconds(each.ended) if each.ended else None
            row = (each.id, each.name, "FINISHED", milliseconds(each.started), ended)
            base.execute("INSERT INTO runs VALUES (?, ?, 'alice', ?, ?, ?, 'active', 1)", row)
            put(base, "tags", each.id, each.tags)
            put(base, "params", each.id, each.parameters)
            for newest in each.metrics:
                points = site.runs.points[each.id, newest.name]
                rows = [
                    (newest.name, one.value, milliseconds(one.time), one.step, 0, each.id)
                    for one in points
                ]
                base.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
                base.execute("INSERT INTO latest_metrics VALUES (?, ?, ?, ?, ?, ?)", rows[-1])
        base.commit()
    return path


def put(base: sqlite3.Connection, table: str, run: str, values: Mapping[str, str]) -> None:
    rows = [(key, value, run) for key, value in values.items()]
    base.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)


@pytest.mark.spec("RUN-2")
@pytest.mark.parametrize("by", ["option", "variable"])
async def test_a_users_own_file_is_compared_in_the_same_way(tmp_path: Path, by: str) -> None:
    site = slowed()
    file = written(tmp_path / "ml.db", site)
    answer = sent(await site.compare(run_store=None))
    if by == "option":
        shell = FakeShell({"/v1/compare": answer})
        assert run(shell, "41", "42", "--mlflow", str(file)) == 0
    else:
        uri = {"MLFLOW_TRACKING_URI": f"sqlite:///{file}"}
        shell = FakeShell({"/v1/compare": answer}, environment=uri)
        assert run(shell, "41", "42") == 0
    text = " ".join(shell.out.split())
    assert "An epoch of B takes 5" in text
    assert "Measured at the same time: cpu_utilization" in text


async def test_a_file_without_these_runs_is_a_warning(tmp_path: Path) -> None:
    site = slowed()
    answer = sent(await site.compare(run_store=None))
    site.runs.runs.clear()
    file = written(tmp_path / "ml.db", site)
    shell = FakeShell({"/v1/compare": answer})
    assert run(shell, "41", "42", "--mlflow", str(file)) == 0
    assert shell.warnings == [f"{file} has no run of these allocations."]
    broken = tmp_path / "none.db"
    broken.write_text("no database")
    shell = FakeShell({"/v1/compare": answer})
    assert run(shell, "41", "42", "--mlflow", str(broken)) == 0
    assert "none.db" in shell.warnings[0]


def shown(answer: Comparison) -> str:
    return comparison_text(answer, Style(width=100), NOW)
