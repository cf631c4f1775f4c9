"""Submitting and cancelling work as its owner: the questions, their bounds, and the port. Pure.

The submit gate runs Slurm's own programs as the caller, so that Slurm's semantics, limits and
refusals hold. This module checks form, never permission: the server's policy decides first, and
Slurm last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from lattice.base.errors import Unavailable, UsageError

LARGEST_SCRIPT_BYTES = 4 * 1024 * 1024
"""Slurm's own limit (`max_script_size`) unless a site changed it."""
MOST_ARGUMENTS = 256
LONGEST_WORD = 8 * 1024
MOST_ARGUMENT_BYTES = 32 * 1024
MOST_VARIABLES = 64
LONGEST_PATH = 4096
MOST_JOBS = 100

_JOB = re.compile(r"[1-9][0-9]{0,8}(?:[_+][0-9]{1,9})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

# Slurm reads these before the script's own lines, and the shell or the linker before anything else.
# Variables for the job must not change the programs that submit it.
_NOT_TO_SET = re.compile(
    r"(?:SBATCH|SLURM|SPANK|LD|BASH_FUNC)_.*"
    r"|.*PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|IFS|ENV|BASH_ENV|ZDOTDIR|SHELLOPTS|BASHOPTS"
    r"|PS[0-9]|PROMPT_COMMAND|TMPDIR|HOSTALIASES|RES_OPTIONS"
)


def job_fault(text: str) -> str:
    """Why `scancel` does not take this job, or an empty text: 123, 123_4 and 123+1 are valid."""
    return "" if _JOB.fullmatch(text) else f"{text[:40]!r} is no job id"


def variable_fault(name: str, value: str) -> str:
    """Why Lattice can't set this variable for a job, or an empty text."""
    if not _VARIABLE.fullmatch(name):
        return f"{name[:40]!r} is no name of an environment variable"
    if _NOT_TO_SET.fullmatch(name):
        return f"{name} can't be set from outside: it steers the programs that submit"
    return _word_fault(value, f"the value of {name}")


def _word_fault(word: str, what: str) -> str:
    if "\0" in word:
        return f"{what} holds a NUL"
    try:
        size = len(word.encode())
    except UnicodeEncodeError:
        return f"{what} is no valid text"
    return f"{what} is too long" if size > LONGEST_WORD else ""


def _arguments_fault(arguments: tuple[str, ...], what: str) -> str:
    if len(arguments) > MOST_ARGUMENTS:
        return f"too many {what}"
    for argument in arguments:
        if fault := _word_fault(argument, f"one of the {what}"):
            return fault
    if sum(len(argument.encode()) for argument in arguments) > MOST_ARGUMENT_BYTES:
        return f"too long {what}"
    return ""


def _directory_fault(directory: str) -> str:
    if directory and not directory.startswith("/"):
        return "the directory is not an absolute path"
    if len(directory) > LONGEST_PATH:
        return "the directory's path is too long"
    return _word_fault(directory, "the directory")


def _environment_fault(environment: tuple[tuple[str, str], ...]) -> str:
    if len(environment) > MOST_VARIABLES:
        return "too many environment variables"
    if len(dict(environment)) != len(environment):
        return "an environment variable stands twice"
    return next(filter(None, (variable_fault(*each) for each in environment)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitQuestion:
    """`sbatch` with these options, its script by descriptor."""

    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """For the script itself."""
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    """Where to submit; the home folder if empty."""
    directory_required: bool = False
    """Refuse, instead of using the home folder, if the directory can't be entered."""
    script_sha256: str = ""

    def fault(self) -> str:
        """Why the question is invalid, or an empty text."""
        if not _DIGEST.fullmatch(self.script_sha256):
            return "the script's digest is malformed"
        if self.options and not self.options[0].startswith("-"):
            return "sbatch's options begin with a dash"
        if "--" in self.options or "" in self.options:
            return "an option of sbatch is empty"
        return (
            _directory_fault(self.directory)
            or _arguments_fault(self.options, "options")
            or _arguments_fault(self.arguments, "arguments")
            or _environment_fault(self.environment)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelQuestion:
    """`scancel` for these jobs."""

    jobs: tuple[str, ...]

    def fault(self) -> str:
        """Why the question is invalid, or an empty text."""
        if not 0 < len(self.jobs) <= MOST_JOBS:
            return f"between 1 and {MOST_JOBS} jobs at once"
        return next(filter(None, map(job_fault, self.jobs)), "")


@dataclass(frozen=True, slots=True)
class Submitter:
    """The Unix user, and the verified caller for the record."""

    user: str
    subject: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of `sbatch`. `cluster` is empty if it named none."""

    job_id: int
    cluster: str = ""
    notes: tuple[str, ...] = ()


class ProgramRefused(UsageError):
    """`sbatch` or `scancel` refused: its own full text, and its exit code."""

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class Unsure(Unavailable):
    """The program was ended before it answered: whether it acted is unknown."""


class SubmitGate(Protocol):
    """Runs Slurm's programs as their caller.

    Both raise `ProgramRefused` with the program's own text, and `PermissionRefused` for an account
    that the gate does not act for. They raise `Unavailable` while the gate does not answer, or its
    subclass `Unsure` if the act may have happened.
    """

    async def submit(self, who: Submitter, question: SubmitQuestion, script: bytes) -> Submitted:
        """Submit a script; `question.script_sha256` is its digest."""

    async def cancel(self, who: Submitter, question: CancelQuestion) -> None:
        """Cancel jobs; Slurm decides on each."""
