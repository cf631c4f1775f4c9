"""`lattice submit` and `lattice cancel`: run `sbatch` and `scancel` as the caller."""

# Pathlib costs a short command more than all of this:
# ruff: noqa: PTH109, PTH121, PTH122, PTH123

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import LatticeError, UsageError, status_of
from lattice.base.shell import Shell
from lattice.base.text import inert, shell_split
from lattice.domain.submission import LARGEST_SCRIPT_BYTES
from lattice.features.submit import operations
from lattice.features.submit.model import CancelAnswer, SubmitRequest
from lattice.features.submit.render import cancelled_line, submitted_line

_WRITTEN = "#!/bin/sh\n# Written by lattice submit.\n"
_SAME = (
    *("arguments", "nodes", "walltime", "gpus", "vcluster", "project", "name", "array"),
    *("depends_on", "output"),
)
"""Of a job file and of a request."""


def read_pair(text: str) -> tuple[str, str]:
    """Parse `name=value`; raises `UsageError`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not of the form name=value")
    return name, value


def submit(  # noqa: PLR0913 - one for each option people know
    shell: Shell,
    *,
    script: str | None,
    arguments: tuple[str, ...],
    nodes: str | None,
    walltime: str | None,
    gpus: str | None,
    vcluster: str | None,
    project: str | None,
    name: str | None,
    array: str | None,
    depends_on: tuple[str, ...],
    label: tuple[tuple[str, str], ...],
    output_file: str | None,
    chdir: str | None,
    env: tuple[tuple[str, str], ...],
    sbatch: tuple[tuple[str, ...], ...],
    uenv: str | None,
    view: str | None,
    tools_uenv: str | None,
    file: str | None,
    idempotency_key: str | None,
) -> int:
    """Submit the script and print the id of the allocation."""
    request = (
        _from_file(shell, file, script)
        if file is not None
        else _from_line(shell, script, arguments)
    )
    request = replace(
        request,
        nodes=nodes or request.nodes,
        walltime=walltime or request.walltime,
        gpus=gpus or request.gpus,
        vcluster=vcluster or request.vcluster,
        project=project or request.project,
        name=name or request.name,
        array=array or request.array,
        output=output_file or request.output,
        directory=chdir or request.directory,
        uenv=uenv or request.uenv,
        view=view or request.view,
        tools_uenv=tools_uenv or request.tools_uenv,
        depends_on=(*request.depends_on, *depends_on),
        labels={**request.labels, **dict(label)},
        environment={**request.environment, **dict(env)},
        options=(*request.options, *(word for group in sbatch for word in group)),
        directory_required=request.directory_required or chdir is not None,
    )
    answer = shell.call(
        operations.submit_allocation(request, idempotency_key=idempotency_key or "")
    )
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(submitted_line(answer))
    for note in answer.notes:
        for line in note.splitlines():
            shell.note(inert(line))
    if answer.repeated and idempotency_key:
        shell.note("The same key had submitted it before.")
    return 0


def _from_line(shell: Shell, script: str | None, arguments: tuple[str, ...]) -> SubmitRequest:
    text, file, own = _script(script, arguments)
    return SubmitRequest(script=text, file=file, arguments=own, directory=_here(shell))


def _from_file(shell: Shell, file: str, script: str | None) -> SubmitRequest:
    """The request of a job file."""
    from lattice.features.submit.job_file import read_job_file  # noqa: PLC0415 - it reads YAML

    if script is not None:
        raise UsageError(
            "The job file names what to run, so nothing else can.",
            hint="Options may stand beside --file; they come before what the file has.",
        )
    job = read_job_file(file)
    if job.script is not None:
        text, name, _ = _script(str(job.script), ())
    else:
        text, name = f"{_WRITTEN}{job.command.rstrip()}\n", os.path.splitext(file)[0]
    same = {each: getattr(job, each) for each in _SAME}
    return SubmitRequest(
        **same,
        script=text,
        file=name,
        labels=dict(job.labels),
        directory=job.chdir or _here(shell),
        directory_required=bool(job.chdir),
        environment=dict(job.env),
        options=tuple(word for option in job.sbatch for word in shell_split(option)),
        uenv=job.environment.uenv,
        view=job.environment.view,
        tools_uenv=job.environment.tools_uenv,
    )


def _script(script: str | None, arguments: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """The text of the script, its name, and its arguments."""
    if script is None:
        raise UsageError(
            "There is nothing to submit.", hint="Name a script, or give a command behind `--`."
        )
    if script == "--":
        if not arguments:
            raise UsageError("There is no command behind `--`.")
        return wrapped(arguments), arguments[0], ()
    if script == "-":
        raw = sys.stdin.buffer.read(LARGEST_SCRIPT_BYTES + 1)
        return _text(raw, "standard input"), "", arguments
    try:
        with open(script, "rb") as file:
            raw = file.read(LARGEST_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"Can't read {script}: {reason}", hint="A command goes behind `--`."
        ) from None
    return _text(raw, script), script, arguments


def wrapped(command: Sequence[str]) -> str:
    """A script that runs one command, with each word quoted."""
    return f"{_WRITTEN}{shlex.join(command)}\n"


def _text(raw: bytes, name: str) -> str:
    if len(raw) > LARGEST_SCRIPT_BYTES:
        raise UsageError(f"{name} is larger than the {LARGEST_SCRIPT_BYTES} bytes Slurm takes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not a text in UTF-8") from None


def _here(shell: Shell) -> str:
    """The current directory as the shell has it in `PWD`; empty if it is gone."""
    try:
        here = os.getcwd()
    except OSError:
        return ""
    logical = shell.environment.get("PWD", "")
    try:
        return logical if logical.startswith("/") and os.path.samefile(logical, here) else here
    except OSError:
        return here


def cancel(
    shell: Shell,
    *,
    id: tuple[str, ...],  # noqa: A002 - the word people read in the usage line
) -> int:
    """Cancel each one; a failure does not stop the others."""
    # All references are resolved first: one that names nothing cancels nothing.
    calls = [operations.cancel_allocation(shell.reference(name)) for name in id]
    if len(calls) == 1:
        return _show_cancelled(shell, [shell.call(calls[0])], 0)
    answers: list[CancelAnswer] = []
    code = 0
    for call in calls:
        try:
            answers.append(shell.call(call))
        except LatticeError as error:
            shell.warn(inert(error.message))
            code = code or status_of(error).exit
    return _show_cancelled(shell, answers, code)


def _show_cancelled(shell: Shell, answers: list[CancelAnswer], code: int) -> int:
    if shell.output in {"json", "yaml"}:
        shell.document(answers)
    else:
        shell.write("".join(map(cancelled_line, answers)))
    return code


SUBMIT = Command(
    "submit",
    summary="Submit a script or a command",
    text="Runs sbatch as you, so #SBATCH lines, limits and refusals are Slurm's own, and values "
    "are those sbatch takes. Words after the SCRIPT are its arguments; `-` reads it from standard "
    "input; a command stands behind `--`.\n\n"
    "The job starts in the directory you are in, if the submit host has it, else in your home, "
    "with the environment of a login there.",
    run=submit,
    params=(
        Argument("script", required=False),
        Argument("arguments", required=False, repeat=True),
        Option("-N", "--nodes", metavar="COUNT", help="How many nodes: 2, or 2-4."),
        Option("-t", "--walltime", metavar="TIME", help="The longest it may run: 2h30m, 1-12:00."),
        Option("-G", "--gpus", metavar="COUNT", help="How many GPUs in all: 8, or a100:8."),
        Option("--vcluster", metavar="NAME", help="Where: its partition and QOS."),
        Option("-A", "--project", metavar="NAME", help="The Slurm account to charge."),
        Option("-J", "--name", metavar="NAME", help="What to call it."),
        Option("-a", "--array", metavar="TASKS", help="An array: 1-10, or 1-100%5."),
        Option(
            "-d",
            "--depends-on",
            metavar="ID:WHEN",
            repeat=True,
            help="Only after another's success, failure or any end.",
        ),
        Option("--label", metavar="NAME=VALUE", read=read_pair, repeat=True, help="A mark on it."),
        Option("--output", "--output-file", metavar="FILE", help="Where its output goes."),
        Option("-D", "--chdir", metavar="DIR", help="Start there, and nowhere else."),
        Option(
            "--env",
            metavar="NAME=VALUE",
            read=read_pair,
            repeat=True,
            help="A variable of its environment.",
        ),
        Option(
            "--sbatch",
            metavar="OPTIONS",
            read=shell_split,
            repeat=True,
            dashed=True,
            help="Pass these on: --sbatch --exclusive, --sbatch '--mem 4G -C a100'.",
        ),
        Option("--uenv", metavar="IMAGE", help="Mount this for the whole job, where Slurm can."),
        Option("--view", metavar="NAME", help="The view of that uenv."),
        Option("--tools-uenv", metavar="IMAGE", help="An image of tools, mounted beside it."),
        Option("--file", metavar="FILE", help="Read all this from a job file."),
        Option(
            "--idempotency-key",
            metavar="KEY",
            help="For scripts: the same key never submits twice.",
        ),
    ),
    examples=(
        ("lattice submit train.sh", "as sbatch train.sh would"),
        ("lattice submit -N 2 -G 8 -t 4h train.sh --epochs 3", "more nodes, arguments"),
        ("lattice submit -G 1 -- python train.py", "a command"),
        ("lattice submit -d 12345:success report.sh", "after another"),
        ("lattice submit --file job.yaml -N 4", "a job file, but on four nodes"),
    ),
    permission="any role but ReadOnly, as your own Unix user",
    passes_on=True,
)

CANCEL = Command(
    "cancel",
    summary="Cancel allocations",
    text="Runs scancel as you: your own, and others' where Slurm lets you as a coordinator or "
    "administrator. A bare id of an array cancels all of it, 12345_7 one task; @last is your "
    "newest, and a name means the only one so called.\n\n"
    "An id that is not there, or not yours, is exit code 102.",
    run=cancel,
    params=(Argument("id", repeat=True, complete="allocations"),),
    examples=(
        ("lattice cancel 12345", "one"),
        ("lattice cancel 12345_7 12346", "a task, and another"),
        ("lattice cancel @last", "the newest"),
    ),
    permission="any role but ReadOnly, for your own",
)
