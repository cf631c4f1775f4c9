"""Slurm's names for the folders, sockets and daemons of a job. Pure.

The names are those of Slurm 20.11 to 26.05; any other name gives None and is ignored:

    freezer/slurm_n1/uid_3001/job_12/step_0/task_1                       cgroup v1
    system.slice/n1_slurmstepd.scope/job_12/step_0/user/task_1           cgroup v2
    system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_1      26.05, by unique id
    n1_12.0, n1_12.4294967291, n1_12.0.1                                 sockets in the spool
    slurmstepd: [12.batch]                                               a daemon's command line
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.domain.nodejobs import StepId

# Ten digits hold every 32-bit number, and bound the work of int() on a hostile name.
_V1_BASE = re.compile(r"slurm(_.+)?", re.ASCII)
_V2_SCOPE = re.compile(r"(.+_)?slurmstepd\.scope", re.ASCII)
_USER = re.compile(r"uid_([0-9]{1,10})", re.ASCII)
_JOB = re.compile(r"job_([0-9]{1,10})", re.ASCII)
_SLUID = re.compile(r"(?:job_)?(s[0-9A-HJKMNP-TV-Z]{13})", re.ASCII)
_STEP = re.compile(r"step_([0-9]{1,10}|[a-z]{1,16})(?:\+([0-9]{1,10}))?", re.ASCII)
_TASK = re.compile(r"task_([0-9]{1,10})", re.ASCII)
_SOCKET = re.compile(
    r".+_(?:([0-9]{1,10})|(s[0-9A-HJKMNP-TV-Z]{13}))\.([0-9]{1,10})(?:\.([0-9]{1,10}))?", re.ASCII
)
# A word before the number is accepted: newer versions may put the unique id there.
_TITLE = re.compile(r"slurmstepd: \[(?:[0-9A-Za-z]+[^0-9A-Za-z.])?([0-9]{1,10})\.", re.ASCII)

_SPECIAL_STEPS = {0xFFFFFFFA: "interactive", 0xFFFFFFFB: "batch", 0xFFFFFFFC: "extern"}
_FIRST_SPECIAL = 0xFFFFFFF0
"""From here on a number is a special value of Slurm and not a job, a step or a task."""


@dataclass(frozen=True, slots=True)
class JobName:
    """A job by its number, by its unique id, or both."""

    job_id: int | None = None
    sluid: str | None = None


@dataclass(frozen=True, slots=True)
class Socket:
    """The socket of one slurmstepd."""

    job: JobName
    step: StepId


def is_v1_base(name: str) -> bool:
    """True for the folder in a v1 hierarchy in which Slurm has users."""
    return _V1_BASE.fullmatch(name) is not None


def is_v2_scope(name: str) -> bool:
    """True for the folder of cgroup v2 in which Slurm has jobs."""
    return _V2_SCOPE.fullmatch(name) is not None


def user_of(name: str) -> int | None:
    found = _USER.fullmatch(name)
    return int(found[1]) if found else None


def job_of(name: str) -> JobName | None:
    if found := _JOB.fullmatch(name):
        job_id = int(found[1])
        return JobName(job_id) if 0 < job_id < _FIRST_SPECIAL else None
    if found := _SLUID.fullmatch(name):
        return JobName(sluid=found[1])
    return None


def step_of(name: str) -> StepId | None:
    found = _STEP.fullmatch(name)
    if found is None:
        return None
    return StepId(_step_name(found[1]), int(found[2]) if found[2] else None)


def task_of(name: str) -> int | None:
    """Also None for `task_special`, which has processes that belong to no task."""
    found = _TASK.fullmatch(name)
    if found is None:
        return None
    number = int(found[1])
    return number if number < _FIRST_SPECIAL else None


def socket_of(name: str) -> Socket | None:
    found = _SOCKET.fullmatch(name)
    if found is None:
        return None
    job = JobName(int(found[1]) if found[1] else None, found[2])
    return Socket(job, StepId(_step_name(found[3]), int(found[4]) if found[4] else None))


def job_of_title(title: str) -> int | None:
    """The job id in the command line of a slurmstepd."""
    found = _TITLE.match(title)
    return int(found[1]) if found else None


def _step_name(text: str) -> str:
    if not text.isdigit():
        return text
    number = int(text)
    return _SPECIAL_STEPS.get(number, str(number))
