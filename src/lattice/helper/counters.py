"""The node's verb `read_process_counters`: what `/proc/PID/io` says of a job's own processes.

Closed to everyone but the owner, so it is read as the owner: the child that answers becomes the
user first, and no capability is needed to look. A pid counts only while its control group is the
granted job's, before and after it was read, so that a pid given to another process in between
shows nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lattice.domain.grant import Grant
from lattice.domain.privileged import Answer, Outcome, ReadProcessCounters
from lattice.helper.account import job_owner
from lattice.helper.privilege import Kernel, become
from lattice.helper.process import is_of_job

_LARGEST_FILE = 4096


class ProcessCounters:
    """Used in a child of its own for each question: it is the user afterwards."""

    def __init__(self, kernel: Kernel, proc: Path = Path("/proc")) -> None:
        self._kernel = kernel
        self._proc = proc

    def read(
        self, grant: Grant, question: ReadProcessCounters, descriptors: Sequence[int]
    ) -> Answer:
        """A JSON object by pid; processes that are gone, or not the job's, are left out."""
        if descriptors or grant.job_id <= 0:
            return Answer(outcome=Outcome.BAD_QUESTION, message="a job, and no descriptors")
        account = job_owner(grant.user)
        if account is None:
            return Answer(outcome=Outcome.ACCOUNT_REFUSED, message="not the user of a job")
        become(self._kernel, account)
        found = {pid: counters_of(self._proc, pid, grant.job_id) for pid in question.pids}
        told = {str(pid): counters for pid, counters in found.items() if counters}
        return Answer(outcome=Outcome.DONE, output=json.dumps(told, separators=(",", ":")))


def counters_of(proc: Path, pid: int, job_id: int) -> dict[str, int]:
    """The counters of one process of the job, or nothing."""
    folder = proc / str(pid)
    if not _is_of_job(folder, job_id):
        return {}
    counters = {}
    for line in _lines(folder / "io"):
        name, colon, value = line.partition(":")
        if colon and value.strip().isdecimal():
            counters[name] = int(value)
    return counters if _is_of_job(folder, job_id) else {}


def _is_of_job(folder: Path, job_id: int) -> bool:
    return is_of_job("\n".join(_lines(folder / "cgroup")), job_id)


def _lines(file: Path) -> list[str]:
    try:
        with file.open(errors="replace") as content:
            return content.read(_LARGEST_FILE).splitlines()
    except OSError:
        return []
