"""A job file: one YAML file with what `lattice submit` takes as options. Read by the CLI.

It is read as configuration files are: within bounds, and with every mistake reported by its line.
Each value is the text that was written: `walltime: 1:30:00` is a time, and `name: no` a name.
"""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lattice.base.config import load
from lattice.base.errors import ConfigurationError, UsageError
from lattice.base.setting import setting

LARGEST_BYTES = 256 * 1024
_HINT = "docs/guide/submit.md has a job file with all keys."


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    uenv: str = setting("", "The images that the site's plugin mounts for the job.")
    view: str = setting("", "Their views.")
    tools_uenv: str = setting("", "An image of tools beside them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """Empty values are left to the command line, to `#SBATCH` lines and to Slurm."""

    script: Path | None = setting(None, "The script; a path from the folder of this file.")
    command: str = setting("", "Or lines for a shell, which become the script.")
    arguments: tuple[str, ...] = setting((), "Arguments of the script.")
    environment: JobEnvironment = setting(JobEnvironment(), "Images for the job.")
    nodes: str = setting("", "How many nodes.")
    walltime: str = setting("", "The longest it may run.")
    gpus: str = setting("", "How many GPUs in all.")
    vcluster: str = setting("", "Where: its partition and QOS.")
    project: str = setting("", "The Slurm account to charge.")
    name: str = setting("", "What to call it.")
    array: str = setting("", "The tasks of an array.")
    depends_on: tuple[str, ...] = setting((), "Other allocations: ID:success and the like.")
    labels: Mapping[str, str] = setting({}, "Marks on it.", alias="label")
    output: str = setting("", "Where its output goes.")
    chdir: str = setting("", "Where it starts.")
    env: Mapping[str, str] = setting({}, "Variables of its environment.")
    sbatch: tuple[str, ...] = setting((), "Other options of sbatch, each with its value.")


def read_job_file(path: str) -> JobFile:
    """Raises `UsageError` with every mistake."""
    file = Path(path)
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"Can't read {path}: {reason}") from None
    if not file.is_file() or size > LARGEST_BYTES:
        raise UsageError(f"{path} is no file of at most {LARGEST_BYTES} bytes.")
    try:
        job, report = load(JobFile, file, {})
    except ConfigurationError as error:
        raise _refused(path, error.problems) from None
    if (job.script is None) == (not job.command):
        has = "neither" if job.script is None else "both"
        report.problem("", f"has {has} of `script` and `command`", "script", "command")
    if job.command and job.arguments:
        report.problem("arguments", "belong to a script, not to a command", "command")
    if report.problems:
        raise _refused(path, report.problems)
    return job


def _refused(path: str, problems: tuple[str, ...]) -> UsageError:
    return UsageError("\n".join((f"The job file {path} can't be used.", *problems)), hint=_HINT)
