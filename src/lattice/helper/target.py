"""Chooses and pins the process of a job from which a terminal takes its environment.

Everything is opened through one descriptor of its folder in `/proc`, which never refers to a later
process with the same pid. A pidfd is open beside it. Start, control group and boot id are read
before. `ProbeTarget.unchanged` reads them again after its namespaces were joined.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lattice.helper.jobgroups import EXTERN, JobGroups, has_extern_step, has_steps
from lattice.helper.kernel_texts import environment_of, status_of, text_of
from lattice.helper.privilege import Kernel, as_files_of
from lattice.helper.process import Pinned, has_ended, identity_of, pinned

CHANGED = "target process changed, retry"
_JOINED = ("ipc", "uts", "net", "mnt")
"""In this order: after the last one the paths of this node are gone."""
_MOST_LOOKED_AT = 256
_YOUNG_S = 5.0
"""For this time after a job's start on a node, its first process may not have started yet."""
_READ = os.O_RDONLY | os.O_CLOEXEC
_PATH_ONLY = os.O_PATH | os.O_CLOEXEC
_ENDED = frozenset("ZXx")
_BOOT = "sys/kernel/random/boot_id"
_LIMITS = {
    "Max cpu time": resource.RLIMIT_CPU,
    "Max file size": resource.RLIMIT_FSIZE,
    "Max data size": resource.RLIMIT_DATA,
    "Max stack size": resource.RLIMIT_STACK,
    "Max core file size": resource.RLIMIT_CORE,
    "Max resident set": resource.RLIMIT_RSS,
    "Max processes": resource.RLIMIT_NPROC,
    "Max open files": resource.RLIMIT_NOFILE,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
    "Max address space": resource.RLIMIT_AS,
}
_LIMIT = re.compile(r"(Max [a-z ]+?) {2,}(unlimited|[0-9]+) +(unlimited|[0-9]+)", re.ASCII)


class NoTarget(Exception):
    """There is no process to enter; the text may be shown to the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A process of the job, and its opened files. `find_target` closes all descriptors."""

    process: Pinned
    step: str
    pidfd: int
    group: int
    """The folder of the job's control group."""
    anchor: int
    """A pidfd of Slurm's process in the extern step, which ends with the job; or -1."""
    proc: int
    """The folder `/proc` of this node."""
    boot: str
    namespaces: tuple[int, ...]
    """Those that differ from ours, in the order in which they are joined."""
    pid_namespace: int
    """-1: ours."""
    cgroup_namespace: int
    root: int
    directory: int
    """-1: the process is not the owner's, so its directory is not used."""
    environment: dict[bytes, bytes]
    umask: int
    limits: tuple[tuple[int, int, int], ...]

    def job_is_over(self) -> bool:
        """Whether Slurm has ended the job on this node."""
        if self.anchor >= 0 and has_ended(self.anchor):
            return True
        return not self.goes_on()

    def goes_on(self) -> bool:
        """Whether Slurm still has the entered extern step, or else any step of the user."""
        return has_extern_step(self.group) if self.step == EXTERN else has_steps(self.group)

    def join(self, kernel: Kernel) -> None:
        """Join its namespaces, in order, and its root."""
        for each in self.namespaces:
            kernel.join_namespace(each)
        ours, theirs = os.stat("/"), os.fstat(self.root)  # noqa: PTH116
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            os.fchdir(self.root)
            os.chroot(".")

    def unchanged(self) -> bool:
        """Whether it still runs as the same process of the same job, and the job continues."""
        return (
            self.process.unchanged()
            and not has_ended(self.pidfd)
            and text_of(self.proc, _BOOT) == self.boot
            and self.goes_on()
        )


@contextmanager
def find_target(
    kernel: Kernel, proc: Path, groups: JobGroups, uid: int, job_id: int
) -> Iterator[ProbeTarget]:
    """Find a process of the user in the first step that has one. Raises `NoTarget`.

    If no step runs, as on the second node of a session, it is Slurm's own process in the extern
    step. That has the job's namespaces; its directory, environment and limits are not used.
    """
    with ExitStack() as held:
        proc_folder = os.open(proc, _READ | os.O_DIRECTORY)
        held.callback(os.close, proc_folder)
        try:
            group = os.open(groups.path, _READ | os.O_DIRECTORY)
        except OSError:
            raise NoTarget(f"Job {job_id} is over on this node.") from None
        held.callback(os.close, group)
        process, step = _choose(held, proc, groups, uid, job_id)
        target = _opened(held, process, step, group, proc_folder)
        target = replace(target, anchor=_anchor(held, proc, groups))
        if step == EXTERN:
            target = replace(target, directory=-1, umask=_octal(""), limits=())
            target.environment.update(_names_of_job(job_id))
        else:
            # Only its owner can read the environment.
            with as_files_of(kernel, uid):
                target.environment.update(environment_of(process.folder) or {})
        yield target


def rehearse_target(kernel: Kernel, proc: Path) -> None:
    """Read of this process what `find_target` reads of a job's, and keep nothing."""
    with suppress(OSError), as_files_of(kernel, os.geteuid()):
        folder = os.open(proc / "self", _READ | os.O_DIRECTORY)
        try:
            identity_of(folder, 0)
            status_of(text_of(folder, "status"))
            read_limits(text_of(folder, "limits"))
            environment_of(folder)
        finally:
            os.close(folder)


def _choose(
    held: ExitStack, proc: Path, groups: JobGroups, uid: int, job_id: int
) -> tuple[Pinned, str]:
    spare: tuple[Pinned, str] | None = None
    own = os.stat(proc / "self/ns/user").st_ino  # noqa: PTH116
    for step in groups.steps():
        for pid in step.pids()[:_MOST_LOOKED_AT]:
            with ExitStack() as pinning, suppress(OSError):
                process = pinning.enter_context(pinned(proc, pid, job_id))
                if process is None or not _fits(process, uid):
                    continue
                # A process in its own user namespace may also have its own view of files.
                usual = os.stat("ns/user", dir_fd=process.folder).st_ino == own
                if usual or spare is None:
                    held.push(pinning.pop_all())
                    spare = process, step.name
                if usual:
                    return process, step.name
    spare = spare or _slurms_own(held, proc, groups, job_id)
    if spare is None:
        reason = f"Job {job_id} has no process of yours on this node: none yet, or none any more."
        raise NoTarget(reason)
    return spare


def _slurms_own(
    held: ExitStack, proc: Path, groups: JobGroups, job_id: int
) -> tuple[Pinned, str] | None:
    """Slurm's process in the extern step, once the job is old enough to have no other."""
    born = groups.born
    if born is None or time.time() - born < _YOUNG_S:
        return None
    own = os.stat(proc / "self/ns/user").st_ino  # noqa: PTH116
    for pid in groups.anchors()[:_MOST_LOOKED_AT]:
        with ExitStack() as pinning, suppress(OSError):
            process = pinning.enter_context(pinned(proc, pid, job_id))
            # All four ids must be root's: a setuid program of the user still has one of the user's.
            if process is None or not _is_users(process, 0):
                continue
            if os.stat("ns/user", dir_fd=process.folder).st_ino == own:
                held.push(pinning.pop_all())
                return process, EXTERN
    return None


def _names_of_job(job_id: int) -> dict[bytes, bytes]:
    number = str(job_id).encode()
    return {b"SLURM_JOB_ID": number, b"SLURM_JOBID": number}


def _fits(process: Pinned, uid: int) -> bool:
    return process.comm != "slurmstepd" and _is_users(process, uid)


def _is_users(process: Pinned, uid: int) -> bool:
    status = status_of(text_of(process.folder, "status"))
    uids = status.get("Uid", "").split()
    return bool(uids) and set(uids) == {str(uid)} and status.get("State", "Z")[:1] not in _ENDED


def _anchor(held: ExitStack, proc: Path, groups: JobGroups) -> int:
    """Only root's process: other guests come and go."""
    for pid in (*groups.anchors()[:_MOST_LOOKED_AT], *groups.extern_daemons()[:1]):
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            held.callback(os.close, pidfd)
            if os.stat(proc / str(pid)).st_uid == 0:  # noqa: PTH116
                return pidfd
    return -1


def _opened(held: ExitStack, process: Pinned, step: str, group: int, proc: int) -> ProbeTarget:
    def opened(name: str, flags: int = _READ) -> int:
        descriptor = os.open(name, flags, dir_fd=process.folder)
        held.callback(os.close, descriptor)
        return descriptor

    try:
        pidfd = os.pidfd_open(process.pid)
        held.callback(os.close, pidfd)
        if not process.unchanged():  # the pidfd may refer to a later process
            raise NoTarget(CHANGED)
        other = {
            name: opened(f"ns/{name}")
            for name in (*_JOINED, "pid", "cgroup")
            if os.stat(f"ns/{name}", dir_fd=process.folder).st_ino
            != os.stat(f"self/ns/{name}", dir_fd=proc).st_ino
        }
        root, directory = opened("root", _PATH_ONLY), opened("cwd", _PATH_ONLY)
    except (ProcessLookupError, FileNotFoundError):
        raise NoTarget(CHANGED) from None
    status = status_of(text_of(process.folder, "status"))
    return ProbeTarget(
        process=process,
        step=step,
        pidfd=pidfd,
        group=group,
        anchor=-1,
        proc=proc,
        boot=text_of(proc, _BOOT),
        namespaces=tuple(other[name] for name in _JOINED if name in other),
        pid_namespace=other.get("pid", -1),
        cgroup_namespace=other.get("cgroup", -1),
        root=root,
        directory=directory,
        environment={},
        umask=_octal(status.get("Umask", "")),
        limits=read_limits(text_of(process.folder, "limits")),
    )


def read_limits(text: str) -> tuple[tuple[int, int, int], ...]:
    """Limit, soft value and hard value from `/proc/PID/limits`."""
    found = []
    for line in text.splitlines():
        limit = _LIMIT.match(line)
        if limit and limit[1] in _LIMITS:
            found.append((_LIMITS[limit[1]], _amount(limit[2]), _amount(limit[3])))
    return tuple(found)


def _amount(word: str) -> int:
    return resource.RLIM_INFINITY if word == "unlimited" else min(int(word[:19]), 2**63 - 1)


def _octal(text: str) -> int:
    return int(text, 8) & 0o777 if re.fullmatch(r"[0-7]{1,4}", text) else 0o022
