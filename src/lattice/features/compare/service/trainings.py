"""Reads the training runs of allocations from the site's run store, and compares them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import Shown
from lattice.domain.statistics.track import Track
from lattice.domain.training_run import TrainingRun
from lattice.features.compare.model import TrainingComparison
from lattice.features.compare.training.choice import chosen, logged_names
from lattice.features.compare.training.epochs import RunValues
from lattice.features.compare.training.pairs import LoggedRun
from lattice.features.compare.training.trainings import FoundTraining, training_comparison
from lattice.foundation.run_finder import FoundRuns, TrainingRunFinder

_RUNS_S = 5.0
_VALUES_S = 20.0
UNSENT = "MLflow did not send its values"
LATE = f"MLflow did not send its values within {_VALUES_S:.0f} s"


@dataclass(frozen=True, slots=True)
class TrainedJob:
    """An allocation of a comparison, and what was measured of it."""

    label: str
    job: JobAttempt
    tracks: Mapping[Shown, Track]
    unmeasured: str


class TrainingSource:
    """Compares trainings. Never raises: what is missing is a reason."""

    def __init__(self, runs: TrainingRunFinder) -> None:
        self._runs = runs

    async def compared(self, jobs: Sequence[TrainedJob]) -> TrainingComparison | None:
        """Return the comparison, or None if the site has no run store."""
        answers = await asyncio.gather(
            *(self._runs.of(each.job.allocation, _RUNS_S) for each in jobs)
        )
        if not any(each.sources for each in answers):
            return None
        trainings = [
            chosen(answer.runs, each.job.attempt.number)
            for each, answer in zip(jobs, answers, strict=True)
        ]
        names = logged_names(trainings)
        found = await asyncio.gather(
            *(
                self._found(each, answer, training, names)
                for each, answer, training in zip(jobs, answers, trainings, strict=True)
            )
        )
        # Long runs take a second of computing, so it runs in a thread.
        return await asyncio.to_thread(training_comparison, found)

    async def _found(
        self,
        job: TrainedJob,
        answer: FoundRuns,
        training: TrainingRun | None,
        names: Sequence[str],
    ) -> FoundTraining:
        silent = next((each.error for each in answer.sources if not each.ok), None)
        logged = LoggedRun(job.label, None, job.tracks, job.unmeasured)
        if training is None:
            reason = f"MLflow does not answer: {silent}" if silent else ""
            return FoundTraining(logged, reason=reason)
        values, reason = await self._values(job.job, training, names)
        return FoundTraining(
            LoggedRun(job.label, values, job.tracks, job.unmeasured),
            training,
            answer.parameters.get(training.id, {}),
            len(answer.runs) - 1,
            reason,
        )

    async def _values(
        self, job: JobAttempt, training: TrainingRun, names: Sequence[str]
    ) -> tuple[RunValues | None, str]:
        """One metric after the other: each may have 100 000 values, and few of them stay."""
        attempt = job.attempt
        assert attempt.started is not None
        values = RunValues(attempt.started, attempt.ended)
        own = {each.name for each in training.metrics}
        try:
            async with asyncio.timeout(_VALUES_S):
                for name in names:
                    if name in own:
                        points = await self._runs.history(training.id, name)
                        if not points:
                            # The run has a newest value of it.
                            return None, UNSENT
                        await asyncio.to_thread(values.add, name, points)
        except TimeoutError:
            return None, LATE
        return values, ""
