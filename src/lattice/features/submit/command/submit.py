"""`lattice submit`: submit a script or a command to Slurm as the caller."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.base.text import inert, shell_words
from lattice.domain.submission import LARGEST_SCRIPT_BYTES
from lattice.features.submit import operations
from lattice.features.submit.model import SubmitRequest
from lattice.features.submit.render import submitted_line


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
    idempotency_key: str | None,
) -> int:
    """Submit the script and print the id of the allocation."""
    text, file, words = _script(script, arguments)
    answer = shell.call(
        operations.submit_allocation(
            SubmitRequest(
                script=text,
                file=file,
                arguments=words,
                nodes=nodes or "",
                walltime=walltime or "",
                gpus=gpus or "",
                vcluster=vcluster or "",
                project=project or "",
                name=name or "",
                array=array or "",
                depends_on=depends_on,
                labels=dict(label),
                output=output_file or "",
                directory=chdir or _here(shell),
                directory_required=chdir is not None,
                environment=dict(env),
                options=tuple(word for group in sbatch for word in group),
            ),
            idempotency_key=idempotency_key or "",
        )
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


def _script(script: str | None, words: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """The text of the script, its name, and its arguments."""
    if script is None:
        raise UsageError(
            "There is nothing to submit.",
            hint="Name a script, or give a command behind `--`.",
        )
    if script == "--":
        if not words:
            raise UsageError("There is no command behind `--`.")
        return wrapped(words), words[0], ()
    if script == "-":
        return _text(sys.stdin.buffer.read(LARGEST_SCRIPT_BYTES + 1), "standard input"), "", words
    try:
        with Path(script).open("rb") as file:
            raw = file.read(LARGEST_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"Can't read {script}: {reason}", hint="A command goes behind `--`."
        ) from None
    return _text(raw, script), script, words


def wrapped(command: Sequence[str]) -> str:
    """A script that runs one command, with each word quoted."""
    return f"#!/bin/sh\n# Written by lattice submit.\n{shlex.join(command)}\n"


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
        here = os.getcwd()  # noqa: PTH109 - the text alone is wanted
    except OSError:
        return ""
    said = shell.environment.get("PWD", "")
    try:
        return said if said.startswith("/") and Path(said).samefile(here) else here
    except OSError:
        return here


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
            read=shell_words,
            repeat=True,
            dashed=True,
            help="Pass these on: --sbatch --exclusive, --sbatch '--mem 4G -C a100'.",
        ),
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
    ),
    permission="any role but ReadOnly, as your own Unix user",
    passes_on=True,
)
