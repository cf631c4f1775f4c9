"""`lattice runs`: the training runs of an allocation, and the allocation of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import NotFound, UsageError
from lattice.base.shell import Shell
from lattice.domain.allocation import Allocation
from lattice.domain.training_run import RunStoreSilent, TrainingRun, runs_of
from lattice.features.runs import operations
from lattice.features.runs.model import RunList
from lattice.features.runs.render import run_table
from lattice.observe.mlflow_file import MlflowFile, mlflow_file

_MOST_JOBS = 10


def runs(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    name: str | None,
    mlflow: str | None,
) -> int:
    """Show the runs of an allocation, or those with a name."""
    if id is not None and name is not None:
        raise UsageError("Give an allocation or --name, not both.")
    file = Path(mlflow) if mlflow else mlflow_file(shell.environment)
    if name is not None:
        answer = shell.call(operations.find_runs(name))
        shown = (*answer.runs, *_named_in_file(shell, file, name, answer.runs))
    else:
        answer = shell.call(operations.list_runs(shell.reference(id)))
        shown = (*answer.runs, *_in_file(file, answer.allocation, answer.runs, shell))
    answer = replace(answer, runs=shown)
    for each in answer.sources:
        if not each.ok:
            shell.warn(f"MLflow does not answer: {each.error}")
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    if shown:
        shell.write(run_table(shown, shell.style, shell.clock.now()))
    else:
        shell.note(_nothing(answer, file))
    return 0


def _nothing(answer: RunList, file: Path | None) -> str:
    if not answer.sources and file is None:
        return (
            "The server names no MLflow server. For a file: --mlflow FILE, or "
            "MLFLOW_TRACKING_URI=sqlite:///FILE."
        )
    return "There is no such run. Runs name their job where `lattice-run` is installed."


def _in_file(
    file: Path | None, allocation: Allocation | None, others: Iterable[TrainingRun], shell: Shell
) -> tuple[TrainingRun, ...]:
    """Those in the file that the server's store has not."""
    if file is None or allocation is None:
        return ()
    try:
        found = MlflowFile(file).of_job(allocation.job_id)
    except RunStoreSilent as silence:
        shell.warn(str(silence))
        return ()
    return _new(runs_of(allocation, found, shell.clock.now()), others)


def _named_in_file(
    shell: Shell, file: Path | None, name: str, others: Sequence[TrainingRun]
) -> tuple[TrainingRun, ...]:
    if file is None:
        return ()
    try:
        found = MlflowFile(file).named(name)
    except RunStoreSilent as silence:
        shell.warn(str(silence))
        return ()
    jobs = dict.fromkeys(each.job_id for each in found if each.job_id is not None)
    shown: list[TrainingRun] = []
    for job_id in [*jobs][:_MOST_JOBS]:
        try:
            allocation = shell.call(operations.list_runs(str(job_id))).allocation
        except NotFound:
            continue
        if allocation is not None:
            shown += runs_of(allocation, found, shell.clock.now())
    return _new(shown, others)


def _new(found: Iterable[TrainingRun], others: Iterable[TrainingRun]) -> tuple[TrainingRun, ...]:
    known = {each.id for each in others}
    return tuple(each for each in found if each.id not in known)


RUNS = Command(
    "runs",
    summary="The training runs of a job, and the job of a run",
    text="Lists the MLflow runs that name an allocation, with their newest values, or with --name "
    "the allocations of a run. Runs name their job by themselves where `lattice-run` is "
    "installed. They come from the MLflow server that the site has named, and from a SQLite file "
    "of MLflow, which this command reads as you.\n\n"
    "One allocation may have several runs, and a run that was resumed has several attempts. What a "
    "run says of itself is checked by nobody.",
    run=runs,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option("--name", metavar="RUN", help="The runs with this name or id, of any allocation."),
        Option(
            "--mlflow",
            metavar="FILE",
            help="MLflow's SQLite file; else the one in MLFLOW_TRACKING_URI.",
        ),
    ),
    examples=(
        ("lattice runs 12345", "the runs of an allocation"),
        ("lattice runs --name resnet-7", "which allocations had this run"),
        ("lattice runs @last --mlflow /scratch/alice/mlflow.db", "from a file, too"),
    ),
    permission="any role, for your own and what is shared with you",
)
