"""What the verbs that inspect a job share: finding the job of a grant, answering, and slots.

    probe_mounts   Whether the job's file systems answer (`probing_mounts`).
    read_tasks     Which processes do the work of its ranks (`tasks`).
    dump_stacks    The stacks of those processes (`stacks`).

Each is granted for one job of one user. They change nothing and send no signal. A child that hangs
is abandoned and counted (`ProbeSlots`), not awaited.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.base import packet
from lattice.domain.grant import Grant
from lattice.domain.privileged import LONGEST_PROBE_MS, Answer, Outcome
from lattice.helper.account import VerbRefused, granted_owner
from lattice.helper.job_entry import Owner
from lattice.helper.jobgroups import JobGroups, find_job

MOST_OF_USER = 8
MOST_OF_ALL = 32
_FORGET_S = 3600.0
_NAME = re.compile(r"([0-9]{1,10})-[a-z]{1,16}-[0-9]{1,24}", re.ASCII)


LONGEST_S = LONGEST_PROBE_MS // 1000 + 8
_CLOCKS_DIFFER_S = 5.0
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class ProbedJob:
    id: int
    owner: Owner
    groups: JobGroups

    @property
    def uid(self) -> int:
        return self.owner.account.pw_uid


class JobFinder:
    """Finds the job of a grant. `to_server_time` converts a time of this node."""

    def __init__(
        self,
        node: str,
        *,
        control_groups: Path = Path("/sys/fs/cgroup"),
        to_server_time: Callable[[float], float] = lambda here_s: here_s,
    ) -> None:
        self._node = node
        self._control_groups = control_groups
        self._to_server_time = to_server_time

    def find(self, grant: Grant, descriptors: Sequence[int]) -> ProbedJob:
        """Find the job, and set an alarm that ends this process. Raises `VerbRefused`."""
        account = granted_owner(grant, descriptors, LONGEST_S)
        groups = find_job(self._control_groups, self._node, account.pw_uid, grant.job_id)
        born = groups.born if groups is not None else None
        if groups is None or born is None:
            reason = f"job {grant.job_id} has nothing of its owner's running on {self._node}"
            raise VerbRefused(Outcome.FAILED, reason)
        if grant.started and self._to_server_time(born) < grant.started - _CLOCKS_DIFFER_S:
            raise VerbRefused(Outcome.FAILED, f"job {grant.job_id} was started again meanwhile")
        return ProbedJob(grant.job_id, Owner.of(account), groups)


def abandon(pid: int, descriptors: Iterable[int]) -> None:
    """Kill a child that may hang, without waiting for its end, and close its descriptors."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    packet.close_all(descriptors)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def answer_in_memory(body: bytes) -> tuple[Answer, Sequence[int]]:
    """An answer that may be larger than a packet: its body is passed as sealed memory."""
    memory = os.memfd_create("probed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    left = memoryview(body)
    while left:
        left = left[os.write(memory, left) :]
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    return Answer(outcome=Outcome.DONE), (memory,)


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot that this process holds, and every process that inherits the descriptor."""

    descriptor: int


@dataclass(frozen=True, slots=True)
class TakenSlot:
    """A slot that an earlier probe holds, and since when."""

    since_s: float


class ProbeSlots:
    """Slots for probes that may hang, in one folder of root. Times are seconds since the boot.

    A slot is a file with a lock, which the probing process holds to its end. A process that waits
    for a dead file share may not even be killable. It is abandoned. Its lock shows later callers
    that it still hangs, since when, and for which user. So the same dead share is not probed twice,
    and the number of hanging probes is limited.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder. Raises `OSError`, and `ValueError` if others could change it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ValueError(f"{folder} must belong to root and be open to root alone")
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, uid: int, kind: str, number: int) -> int:
        """Open the file of a slot as root; the caller takes it later, without root's rights."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.open(f"{uid}-{kind}-{number}", flags, 0o600, dir_fd=self._folder)

    def room(self, uid: int) -> int:
        """How many more probes may start for this user. Also removes old files of free slots."""
        of_user = of_all = 0
        for name in os.listdir(self._folder):  # noqa: PTH208
            named = _NAME.fullmatch(name)
            if named and self._is_taken(name):
                of_all += 1
                of_user += int(named[1]) == uid
        return max(0, min(MOST_OF_USER - of_user, MOST_OF_ALL - of_all))

    def _is_taken(self, name: str) -> bool:
        try:
            file = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            # A file that a process is about to lock is younger.
            if time.time() - os.fstat(file).st_mtime > _FORGET_S:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)
            return False
        finally:
            os.close(file)


def take(file: int) -> HeldSlot | TakenSlot:
    """Take the slot, or return since when another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        since = os.pread(file, 32, 0)
        return TakenSlot(int(since) / 1e9 if since.isdigit() else _now_s())
    os.ftruncate(file, 0)
    os.pwrite(file, str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)).encode(), 0)
    return HeldSlot(file)


def waited_s(taken: TakenSlot) -> float:
    """For how long the earlier probe has waited."""
    return max(0.0, _now_s() - taken.since_s)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
