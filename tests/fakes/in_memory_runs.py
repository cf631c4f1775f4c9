"""A run store in memory. Passes the port's contract suite."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from lattice.domain.training_run import (
    LOADED_TAG,
    MOST_RUNS,
    SAVED_TAG,
    RunMetric,
    RunPoint,
    RunStoreSilent,
    StoredTraining,
)


class InMemoryRunStore:
    """Holds what it was given; `reason` silences it."""

    def __init__(self) -> None:
        self.runs: list[StoredTraining] = []
        self.points: dict[tuple[str, str], tuple[RunPoint, ...]] = {}
        self.reason = ""
        self.reason_of: dict[object, str] = {}
        """Silences only what is asked with this tag."""
        self.asked: list[object] = []

    def add(
        self,
        name: str,
        tags: Mapping[str, str],
        started: datetime,
        *,
        ended: datetime | None = None,
        metrics: Mapping[str, tuple[RunPoint, ...]] | None = None,
        status: str = "",
        user: str = "alice",
        experiment: str = "vision",
        parameters: Mapping[str, str] | None = None,
    ) -> StoredTraining:
        """One more run."""
        number = f"{len(self.runs) + 1:032x}"
        newest = []
        for metric, points in sorted((metrics or {}).items()):
            self.points[number, metric] = points
            last = points[-1]
            newest.append(RunMetric(name=metric, value=last.value, step=last.step, time=last.time))
        made = StoredTraining(
            id=number,
            name=name,
            experiment=experiment,
            user=user,
            status=status or ("finished" if ended else "running"),
            started=started,
            ended=ended,
            tags=tags,
            metrics=tuple(newest),
            parameters=parameters or {},
        )
        self.runs.append(made)
        return made

    async def of_job(self, job_id: int) -> tuple[StoredTraining, ...]:
        return self._newest(job_id, [each for each in self.runs if each.job_id == job_id])

    async def named(self, name: str) -> tuple[StoredTraining, ...]:
        return self._newest(name, [each for each in self.runs if name in {each.name, each.id}])

    async def with_checkpoint(self, tag: str, checksum: str) -> tuple[StoredTraining, ...]:
        if tag in self.reason_of:
            raise RunStoreSilent(self.reason_of[tag])
        own = {SAVED_TAG: lambda run: run.saved, LOADED_TAG: lambda run: run.loaded}[tag]
        return self._newest((tag, checksum), [each for each in self.runs if checksum in own(each)])

    async def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        self._note((run, metric))
        return self.points.get((run, metric), ())

    def link(self, run: StoredTraining) -> str:
        return f"https://mlflow.example/#/runs/{run.id}"

    def _newest(self, asked: object, found: list[StoredTraining]) -> tuple[StoredTraining, ...]:
        self._note(asked)
        return tuple(sorted(found, key=lambda each: each.started, reverse=True))[:MOST_RUNS]

    def _note(self, asked: object) -> None:
        self.asked.append(asked)
        if self.reason:
            raise RunStoreSilent(self.reason)
