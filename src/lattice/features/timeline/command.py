"""`lattice timeline`: what happened to a job, and what was measured, on one axis of time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.training_run import RunStoreSilent, runs_of
from lattice.features.timeline import operations
from lattice.features.timeline.lines import chosen_metrics, thinned
from lattice.features.timeline.model import MOST_TRAININGS, OwnTimeline, Timeline, TimelineLine
from lattice.observe.mlflow_file import MlflowFile, mlflow_file

SPANS_VARIABLE = "LATTICE_SPANS"
_PATIENCE_S = 3.0
UNNAMED_SPANS = (
    "Spans: rows with ? name no job, so they may be another one's. `lattice-run` names it."
)


def timeline(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    html: str | None,
    mlflow: str | None,
    spans: Sequence[str],
) -> int:
    """Show the timeline, or write it as a page."""
    found = shell.call(operations.get_timeline(shell.reference(id)))
    file = Path(mlflow) if mlflow else mlflow_file(shell.environment)
    if file is not None:
        found = _with_file(found, file, shell.clock.now())
    answer = _with_spans(shell, found, spans or _named_spans(shell))
    if html is not None:
        from lattice.features.timeline.render.page import page  # noqa: PLC0415

        _write(Path(html), page(answer))
        shell.note(f"Written to {html}; it opens without a network.")
        return 0
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    from lattice.features.timeline.render.plain import timeline_text  # noqa: PLC0415

    shell.write(timeline_text(answer, shell.style, shell.clock.now()))
    return 0


def _with_file(timeline: Timeline, file: Path, now: datetime) -> Timeline:
    """Add the runs of a SQLite file of MLflow that the server's store has not."""
    store, known = MlflowFile(file), {each.id for each in timeline.runs}
    try:
        found = runs_of(_allocation(timeline), store.of_job(timeline.job_id), now)
        runs = tuple(each for each in found if each.id not in known)
        lines = tuple(
            TimelineLine(name=name, run=run.id, points=thinned(points))
            for run in runs[:MOST_TRAININGS]
            for name in chosen_metrics(run)
            if (points := store.history(run.id, name))
        )
    except RunStoreSilent as silence:
        return replace(timeline, missing=(*timeline.missing, f"Runs: {silence}"))
    return replace(timeline, runs=(*timeline.runs, *runs), lines=(*timeline.lines, *lines))


def _named_spans(shell: Shell) -> Sequence[str]:
    path = shell.environment.get(SPANS_VARIABLE, "")
    return (path,) if path else ()


def _with_spans(shell: Shell, timeline: Timeline, paths: Sequence[str]) -> OwnTimeline:
    """Add what the job has written in files of spans."""
    own = OwnTimeline(**{each.name: getattr(timeline, each.name) for each in fields(timeline)})
    if not paths:
        return own
    from lattice.features.timeline.span_rows import SpanMerger  # noqa: PLC0415
    from lattice.observe.span_files.reader import SpanFiles  # noqa: PLC0415

    files = SpanFiles(paths, timeline.job_id)
    merger = SpanMerger(timeline.begin, timeline.until)
    take_back = shell.later(_PATIENCE_S, lambda: shell.note("Reading the files of spans …"))
    try:
        for each in files.of(_allocation(timeline), shell.clock.now()):
            merger.add(each.record, is_named=each.is_named, rank=each.rank)
    finally:
        take_back()
    spans, marks = merger.spans(), merger.marks()
    missing = [f"Spans: {each}." for each in files.missing()]
    if merger.left_out:
        missing.append(f"Spans: {merger.left_out} with further names are not shown.")
    if not all((*(each.named for each in spans), *(each.named for each in marks))):
        missing.append(UNNAMED_SPANS)
    return replace(own, spans=spans, marks=marks, missing=(*own.missing, *missing))


def _allocation(timeline: Timeline) -> Allocation:
    """What runs are compared with."""
    return Allocation(
        cluster=timeline.cluster,
        id=timeline.allocation.partition("@")[0],
        job_id=timeline.job_id,
        name=timeline.name,
        user=timeline.user,
        account="",
        tenant="",
        partition="",
        qos="",
        vcluster=None,
        state=timeline.state,
        submitted=timeline.begin,
        first_submitted=timeline.begin,
        ended=timeline.until if timeline.finished else None,
        attempts=tuple(
            Attempt(
                number=each.number,
                state=each.state,
                submitted=each.submitted,
                started=each.started,
                ended=each.ended,
            )
            for each in timeline.attempts
        ),
    )


def _write(path: Path, text: str) -> None:
    """Replace the file in one step, readable for its owner alone. Raises `UsageError`."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UsageError(
            f"{path} can't be written: {error.strerror}", hint="Name a file in your own folder."
        ) from None


TIMELINE = Command(
    "timeline",
    summary="What happened to a job and what was measured, on one axis",
    text="Shows a job from its submit to its end or to now on one axis of time: waiting, starting "
    "and running of each attempt, its training runs with their loss, what was measured, the alerts "
    "that stand, your terminals, and who else has read it. "
    "Spans that the job has written with OpenTelemetry are read from files, as you.\n\n"
    "--html writes one file that opens in any browser without a network. It has the same content "
    "with every time and text. What can't be shown is named with the reason.",
    run=timeline,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option("--html", metavar="FILE", help="Write a page into this file instead."),
        Option(
            "--mlflow",
            metavar="FILE",
            help="MLflow's SQLite file; else the one in MLFLOW_TRACKING_URI.",
        ),
        Option(
            "--spans",
            metavar="FILE",
            repeat=True,
            help="A file of spans, or a folder; %j is the job. Else LATTICE_SPANS.",
        ),
    ),
    examples=(
        ("lattice timeline 12345", "in the terminal"),
        ("lattice timeline @last --html run.html", "one file, to keep or to send"),
        ("lattice timeline 12345 --spans spans/%j", "with the spans that the job has written"),
        ("lattice timeline 12345 -o json", "every point, for a script"),
    ),
    permission="any role, for your own and what is shared with you",
)
