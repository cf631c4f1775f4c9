"""Which values of a run are shown, and how many. Pure."""

from __future__ import annotations

from lattice.domain.training_run import RunPoint, TrainingRun
from lattice.features.timeline.model import MOST_LINE_POINTS, MOST_RUN_LINES, TimelinePoint

_FIRST = ("loss", "epoch", "learning_rate", "lr", "accuracy", "acc")


def chosen_metrics(run: TrainingRun) -> tuple[str, ...]:
    """The metrics of a run to show: loss and epoch first."""
    names = sorted((each.name for each in run.metrics), key=lambda name: (_rank(name), name))
    return tuple(names[:MOST_RUN_LINES])


def _rank(name: str) -> int:
    plain = name.lower()
    return next((at for at, word in enumerate(_FIRST) if word in plain), len(_FIRST))


def thinned(points: tuple[RunPoint, ...]) -> tuple[TimelinePoint, ...]:
    """At most `MOST_LINE_POINTS`, evenly chosen, with the first and the last."""
    if len(points) > MOST_LINE_POINTS:
        parts = MOST_LINE_POINTS - 1
        points = tuple(points[at * (len(points) - 1) // parts] for at in range(parts + 1))
    return tuple(TimelinePoint(time=each.time, value=each.value) for each in points)
