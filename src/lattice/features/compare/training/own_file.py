"""Compares the training runs of a user's own MLflow file, as the command of that user."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.measured import Shown
from lattice.domain.statistics.track import Track, track_of
from lattice.domain.training_run import TrainingRun, runs_of
from lattice.features.compare.model import ComparedRun, Comparison, TrainingComparison
from lattice.features.compare.training.choice import chosen, logged_names
from lattice.features.compare.training.epochs import RunValues
from lattice.features.compare.training.pairs import LoggedRun
from lattice.features.compare.training.trainings import FoundTraining, training_comparison
from lattice.observe.mlflow_file import MlflowFile


def compared_from_file(
    comparison: Comparison, path: Path, now: datetime
) -> TrainingComparison | None:
    """Return what the file has of these allocations; None if it has no run of any.

    Raises `RunStoreSilent`. What was measured is taken from the answer, at the resolution of its
    plots.
    """
    file = MlflowFile(path)
    stored = [file.of_job(each.job_id) for each in comparison.runs]
    own = [
        runs_of(_allocation(run), found, now)
        for run, found in zip(comparison.runs, stored, strict=True)
    ]
    trainings = [
        chosen(found, run.attempt) for run, found in zip(comparison.runs, own, strict=True)
    ]
    if not any(trainings):
        return None
    names = logged_names(trainings)
    parameters = {each.id: each.parameters for found in stored for each in found}
    found = [
        FoundTraining(
            LoggedRun(
                run.label,
                _values(file, run, training, names),
                _tracks(comparison, number),
                run.origin.reason,
            ),
            training,
            parameters.get(training.id, {}) if training is not None else {},
            max(len(own[number]) - 1, 0),
        )
        for number, (run, training) in enumerate(zip(comparison.runs, trainings, strict=True))
    ]
    return training_comparison(found)


def _values(
    file: MlflowFile, run: ComparedRun, training: TrainingRun | None, names: tuple[str, ...]
) -> RunValues | None:
    if training is None:
        return None
    values = RunValues(run.started, run.ended)
    logged = {each.name for each in training.metrics}
    for name in names:
        if name in logged:
            values.add(name, file.history(training.id, name))
    return values


def _tracks(comparison: Comparison, number: int) -> dict[Shown, Track]:
    found = {}
    for row in comparison.metrics:
        line = row.lines[number]
        if line.points and line.step_s > 0:
            points = [(each.at_s, each.value) for each in line.points]
            found[row.metric] = track_of(points, line.step_s, points[-1][0] + line.step_s / 2)
    return found


def _allocation(run: ComparedRun) -> Allocation:
    """What runs are looked up for. Of its attempts only the compared one is known."""
    first = run.submitted or run.started
    attempt = Attempt(
        number=run.attempt,
        state=run.state,
        submitted=first,
        started=run.started,
        ended=run.ended,
    )
    return Allocation(
        cluster=run.cluster,
        id=run.id,
        job_id=run.job_id,
        name=run.name,
        user=run.user,
        account="",
        tenant="",
        partition="",
        qos="",
        vcluster=None,
        state=run.state,
        submitted=first,
        first_submitted=first,
        ended=run.ended,
        attempts=(attempt,),
    )
