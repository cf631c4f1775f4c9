"""Training runs of the caller's own file on a card. Loaded only where a variable names the file."""

from __future__ import annotations

from dataclasses import replace

from lattice.base.shell import Shell
from lattice.domain.training_run import RunStoreSilent, runs_of
from lattice.features.allocations.model import AllocationCard
from lattice.observe.mlflow_file import MlflowFile, mlflow_file


def with_own_runs(shell: Shell, answer: AllocationCard) -> AllocationCard:
    """Add those that the server's store has not. A file that can't be read is a warning."""
    file = mlflow_file(shell.environment)
    if file is None:
        return answer
    try:
        found = MlflowFile(file).of_job(answer.allocation.job_id)
    except RunStoreSilent as silence:
        shell.warn(str(silence))
        return answer
    known = {each.id for each in answer.runs}
    own = runs_of(answer.allocation, found, shell.clock.now())
    return replace(answer, runs=(*answer.runs, *(each for each in own if each.id not in known)))
