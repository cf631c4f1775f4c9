"""Picks the training run of an allocation that is compared, and the metrics of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.domain.training_run import TrainingRun

MOST_LOGGED = 8
_FIRST = (
    *("loss", "learning_rate", "lr", "memory", "vram", "time", "seconds", "throughput"),
    *("per_s", "accuracy", "acc"),
)
_SYSTEM = "system"
"""MLflow's own samples of the machine: their steps are not those of the training."""


def chosen(runs: Sequence[TrainingRun], attempt: int) -> TrainingRun | None:
    """Return the run of this attempt that went furthest; a test of the model has few steps."""
    own = [each for each in runs if attempt in each.attempts]
    return max(own, key=_reach, default=None)


def logged_names(trainings: Sequence[TrainingRun | None]) -> tuple[str, ...]:
    """Return the metrics to compare: those that the first run and any other have, loss first."""
    first, *others = [_names(each) for each in trainings]
    both = [name for name in first if any(name in each for each in others)]
    both.sort(key=lambda name: (_rank(name), name))
    epochs = [name for name in both if is_epoch(name)]
    rest = [name for name in both if not is_epoch(name)]
    return (*epochs[:1], *rest[:MOST_LOGGED])


def is_epoch(name: str) -> bool:
    """Return True for the metric that names the epoch."""
    return name.lower().rpartition("/")[2] == "epoch"


def _names(training: TrainingRun | None) -> set[str]:
    if training is None:
        return set()
    return {each.name for each in training.metrics if not _is_of_machine(each.name)}


def _reach(run: TrainingRun) -> tuple[int, float]:
    steps = [each.step for each in run.metrics if not _is_of_machine(each.name)]
    return max(steps, default=-1), -run.started.timestamp()


def _is_of_machine(name: str) -> bool:
    return name.partition("/")[0] == _SYSTEM


def _rank(name: str) -> int:
    plain = name.lower()
    return next((at for at, word in enumerate(_FIRST) if word in plain), len(_FIRST))
