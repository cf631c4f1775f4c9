"""The job of a unique id, by which Slurm from 26.05 on names a job's folder on cgroup v2.

    system.slice/n1_slurmstepd.scope/sDFDM7JZPGD600/step_batch/slurm            Slurm's daemon
    system.slice/n1_slurmstepd.scope/sDFDM7JZPGD600/step_batch/user/task_0      the user's program

The daemon of a step has the job's number in its command line. Only root can place a process in the
folder of a daemon. So a process there that is root's, and no program that a user started with
root's rights, tells the truth. A unique id is given to one job only: its number never changes.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache

from lattice.helper.kernel_texts import bytes_of, status_of, text_of

UNIQUE_ID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}", re.ASCII)
_TITLE = re.compile(r"slurmstepd: \[(?:[^\]]*[^0-9A-Za-z.\]])?([0-9]{1,10})\.", re.ASCII)
_STEP = re.compile(r"step_[a-z0-9+]{1,20}", re.ASCII)
_ROOTS = ["0"] * 4
_MOST_STEPS = 1024
_LARGEST_LIST = 64 * 1024


def job_of_unique_id(folder: str, proc: str = "/proc") -> int | None:
    """The job with this folder; None if no daemon of Slurm is there."""
    try:
        return _job_of(folder, proc)
    except LookupError:
        return None


@lru_cache(maxsize=4096)
def _job_of(folder: str, proc: str) -> int:
    # An exception is not cached: the daemon may come later.
    with suppress(OSError):
        for step in os.listdir(folder)[:_MOST_STEPS]:  # noqa: PTH208 - paths are text here
            if not _STEP.fullmatch(step):
                continue
            daemons = bytes_of(f"{folder}/{step}/slurm/cgroup.procs", _LARGEST_LIST) or b""
            for pid in daemons.split():
                group = f"/{os.path.basename(folder)}/{step}/slurm"  # noqa: PTH119
                job_id = _of_daemon(f"{proc}/{int(pid)}", group) if pid.isdigit() else None
                if job_id is not None:
                    return job_id
    raise LookupError(folder)


def _of_daemon(process: str, group: str) -> int | None:
    """The job in the command line of Slurm's daemon; None if this process is not one."""
    try:
        pinned = os.open(process, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        title = _TITLE.match(text_of(pinned, "cmdline"))
        is_roots = status_of(text_of(pinned, "status")).get("Uid", "").split() == _ROOTS
        lines = text_of(pinned, "cgroup").splitlines()
    finally:
        os.close(pinned)
    is_there = any(line.startswith("0::") and line.endswith(group) for line in lines)
    return int(title[1]) if title is not None and is_roots and is_there else None
