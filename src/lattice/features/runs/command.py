"""`lattice runs`: the training runs of an allocation, and the allocation of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.base.shell import Shell
from lattice.domain.allocation import Allocation
from lattice.domain.checkpoint_lineage import LineageWalk, RunLineage
from lattice.domain.training_run import RunStoreSilent, StoredTraining, TrainingRun, runs_of
from lattice.features.runs import operations
from lattice.features.runs.model import RunList
from lattice.features.runs.render import lineage_text, run_table
from lattice.observe.mlflow_file import MlflowFile, mlflow_file

_MOST_JOBS = 10


def runs(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    name: str | None,
    mlflow: str | None,
    lineage: bool,
) -> int:
    """Show the runs of an allocation, or those with a name."""
    if id is not None and name is not None:
        raise UsageError("Give an allocation or --name, not both.")
    if lineage and name is not None:
        raise UsageError("--lineage takes an allocation.", hint="lattice runs 12345 --lineage")
    path = Path(mlflow) if mlflow else mlflow_file(shell.environment)
    file = MlflowFile(path) if path is not None else None
    answer = (
        shell.call(operations.find_runs(name))
        if name is not None
        else shell.call(operations.list_runs(_allocation(shell, id), lineage=lineage))
    )
    unread = [f"MLflow does not answer: {each.error}" for each in answer.sources if not each.ok]
    try:
        more = _in_file(shell, file, name, answer) if file is not None else ()
    except RunStoreSilent as silence:
        more = ()
        unread.append(str(silence))
    shown = (*answer.runs, *more)
    if not shown and unread:
        raise Unavailable(
            f"It is not known whether there are runs. {'; '.join(unread)}.",
            hint="Try again later, or name MLflow's SQLite file with --mlflow FILE.",
        )
    for each in unread:
        shell.warn(each)
    if file is not None and more and lineage:
        answer = replace(answer, lineage=_lineage_in_file(shell, file, answer, more))
    if shell.output in {"json", "yaml"}:
        shell.document(replace(answer, runs=shown))
    elif shown and answer.lineage is not None:
        shell.write(lineage_text(answer.lineage, shell.style, shell.clock.now()))
    elif shown:
        shell.write(run_table(shown, shell.style, shell.clock.now()))
    else:
        shell.note(_nothing(answer, file))
    return 0


def _allocation(shell: Shell, word: str | None) -> str:
    try:
        return shell.reference(word)
    except UsageError as error:
        if word is not None:
            raise
        raise UsageError(
            error.message, hint="Or --name RUN. `lattice status` lists your ids."
        ) from None


def _nothing(answer: RunList, file: MlflowFile | None) -> str:
    if not answer.sources and file is None:
        return (
            "The server names no MLflow server. For a file: --mlflow FILE, or "
            "MLFLOW_TRACKING_URI=sqlite:///FILE."
        )
    return "There is no such run. Runs name their job where `lattice-run` is installed."


def _in_file(
    shell: Shell, file: MlflowFile, name: str | None, answer: RunList
) -> tuple[TrainingRun, ...]:
    """Those in the file that the server's store has not. Raises `RunStoreSilent`."""
    known = {each.id for each in answer.runs}
    found = _named(shell, file, name) if name is not None else _of(shell, file, answer.allocation)
    return tuple(each for each in found if each.id not in known)


def _of(shell: Shell, file: MlflowFile, allocation: Allocation | None) -> tuple[TrainingRun, ...]:
    if allocation is None:
        return ()
    return runs_of(allocation, file.of_job(allocation.job_id), shell.clock.now())


def _named(shell: Shell, file: MlflowFile, name: str) -> tuple[TrainingRun, ...]:
    return tuple(_seen(shell, file.named(name), {}))


def _seen(
    shell: Shell, found: Sequence[StoredTraining], known: dict[int, Allocation | None]
) -> list[TrainingRun]:
    """Those of a file whose allocation the server shows to the user."""
    shown: list[TrainingRun] = []
    for job_id in dict.fromkeys(each.job_id for each in found if each.job_id is not None):
        if job_id not in known:
            if len(known) >= _MOST_JOBS:
                break
            try:
                known[job_id] = shell.call(operations.list_runs(str(job_id))).allocation
            except NotFound:
                known[job_id] = None
        allocation = known[job_id]
        if allocation is not None:
            shown += runs_of(allocation, found, shell.clock.now())
    return shown


def _lineage_in_file(
    shell: Shell, file: MlflowFile, answer: RunList, runs: Sequence[TrainingRun]
) -> RunLineage:
    """What the server knows, and what the file has beside it."""
    walk, known = LineageWalk(runs), dict[int, Allocation | None]()
    try:
        while (question := walk.next()) is not None:
            found = file.with_checkpoint(question.tag, question.checksum)
            walk.found(_seen(shell, found, known))
    except RunStoreSilent as silence:
        walk.stop(str(silence))
    own, served = walk.lineage(), answer.lineage or RunLineage()
    listed = {each.id for each in served.runs}
    return RunLineage(
        runs=(*served.runs, *(each for each in own.runs if each.id not in listed)),
        links=tuple(dict.fromkeys((*served.links, *own.links))),
        notes=(*served.notes, *own.notes),
    )


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
        Option(
            "--lineage",
            help="Follow the checkpoints that its runs wrote and loaded to other runs.",
        ),
    ),
    examples=(
        ("lattice runs 12345", "the runs of an allocation"),
        ("lattice runs --name resnet-7", "which allocations had this run"),
        ("lattice runs 12345 --lineage", "which runs its checkpoints came from and went to"),
        ("lattice runs @last --mlflow /scratch/alice/mlflow.db", "from a file, too"),
    ),
    permission="any role, for your own and what is shared with you",
)
