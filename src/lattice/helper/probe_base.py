"""What the verbs that inspect a job share: finding the job of a grant, and answering.

    probe_mounts   Whether the job's file systems answer (`probing_mounts`).
    read_tasks     Which processes do the work of its ranks (`tasks`).
    dump_stacks    The stacks of those processes (`stacks`).

Each is granted for one job of one user. They change nothing and send no signal. A child that hangs
is abandoned and counted (`probe_slots`), not awaited.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lattice.domain.grant import Grant
from lattice.domain.privileged import LONGEST_PROBE_MS, Answer, Outcome
from lattice.helper.account import job_owner
from lattice.helper.job_entry import Owner
from lattice.helper.jobgroups import JobGroups, find_job
from lattice.helper.privilege import Kernel

LONGEST_S = LONGEST_PROBE_MS // 1000 + 8
_CLOCKS_DIFFER_S = 5.0
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class NotProbed(Exception):
    """Nothing was inspected; the answer has the reason."""

    def __init__(self, outcome: Outcome, words: str) -> None:
        super().__init__(words)
        self.answer = Answer(outcome=outcome, message=words)


@dataclass(frozen=True, slots=True)
class ProbedJob:
    """The granted job on this node."""

    id: int
    owner: Owner
    groups: JobGroups

    @property
    def uid(self) -> int:
        return self.owner.account.pw_uid


class JobFinder:
    """Finds the job of a grant. `told` converts a time of this node to the servers' time."""

    def __init__(
        self,
        node: str,
        *,
        control_groups: Path = Path("/sys/fs/cgroup"),
        told: Callable[[float], float] = lambda here_s: here_s,
    ) -> None:
        self._node = node
        self._control_groups = control_groups
        self._told = told

    def find(self, grant: Grant, descriptors: Sequence[int]) -> ProbedJob:
        """Find the job, and set an alarm that ends this process. Raises `NotProbed`."""
        if descriptors or grant.job_id <= 0:
            raise NotProbed(Outcome.BAD_QUESTION, "a job, and no descriptors")
        account = job_owner(grant.user)
        if account is None:
            raise NotProbed(Outcome.ACCOUNT_REFUSED, "not the user of a job")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_S)
        groups = find_job(self._control_groups, self._node, account.pw_uid, grant.job_id)
        born = groups.born if groups is not None else None
        if groups is None or born is None:
            words = f"job {grant.job_id} has nothing of its owner's running on {self._node}"
            raise NotProbed(Outcome.FAILED, words)
        if grant.started and self._told(born) < grant.started - _CLOCKS_DIFFER_S:
            raise NotProbed(Outcome.FAILED, f"job {grant.job_id} was started again meanwhile")
        return ProbedJob(grant.job_id, Owner.of(account), groups)


@contextmanager
def as_files_of(kernel: Kernel, uid: int) -> Iterator[None]:
    """Access files as this user; everything else of the process stays as it is."""
    kernel.set_file_user(uid)
    try:
        yield
    finally:
        kernel.set_file_user(os.geteuid())


def told_in_memory(body: bytes) -> tuple[Answer, Sequence[int]]:
    """An answer that may be larger than a packet: its body is passed as sealed memory."""
    memory = os.memfd_create("probed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    left = memoryview(body)
    while left:
        left = left[os.write(memory, left) :]
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    return Answer(outcome=Outcome.DONE), (memory,)
