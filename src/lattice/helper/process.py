"""A pinned process, never another one that got the same pid later, and the kernel's texts about it.

Once a process is gone, a descriptor of its `/proc/PID` always gives "no such process". So
everything is read through such a descriptor. The control group shows the job, and is read before
and after. The first `job_N` of its path counts, because users may create folders below it.

A text that does not have the kernel's format counts as unknown.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lattice.domain.kerneltext import figure

_LARGEST_FILE = 16 * 1024
_READ_BYTES = 64 * 1024
_LARGEST_ENVIRONMENT = 256 * 1024
_RANK = "SLURM_PROCID="
_LONGEST_RANK = 9
_JOB = re.compile(r"job_([0-9]{1,10})", re.ASCII)
_STEP = re.compile(r"step_(batch|extern|interactive|[0-9]{1,10}(?:\+[0-9]{1,6})?)", re.ASCII)
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:-[a-z]+)?", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}", re.ASCII)
_STATES = frozenset("RSDTtZXxKWPI")
_LONGEST_COMMAND = 128
_STATE, _PARENT, _USER_TIME, _SYSTEM_TIME, _START = 0, 1, 11, 12, 19
"""Indexes of the fields of `/proc/PID/stat` after the name."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One process of a job. `folder` is an open descriptor of its folder in `/proc`."""

    pid: int
    folder: int
    job_id: int
    started: int
    comm: str

    def rank(self) -> int | None:
        """Its task's number in the step, from its environment; the user can set any value."""
        for each in text_of(self.folder, "environ", _LARGEST_ENVIRONMENT).split("\0"):
            if each.startswith(_RANK):
                return figure(each.removeprefix(_RANK)[:_LONGEST_RANK])
        return None

    def step(self) -> str:
        """Its step, from its control group; empty if that has none."""
        return step_of(text_of(self.folder, "cgroup"), self.job_id)

    def unchanged(self) -> bool:
        """Whether it still runs in the same job; it may have executed another program."""
        now = identity_of(self.folder, self.job_id)
        return now is not None and now[0] == self.started


@contextmanager
def pinned(proc: Path, pid: int, job_id: int) -> Iterator[Pinned | None]:
    """The process, if it belongs to the job."""
    try:
        folder = os.open(proc / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        identity = identity_of(folder, job_id)
        yield None if identity is None else Pinned(pid, folder, job_id, *identity)
    finally:
        os.close(folder)


def identity_of(folder: int, job_id: int) -> tuple[int, str] | None:
    """Its start and its name, while it is a process of the job."""
    if not is_of_job(text_of(folder, "cgroup"), job_id):
        return None
    stat = read_stat(text_of(folder, "stat"))
    return None if stat is None else (stat.started, stat.name)


def is_of_job(cgroups: str, job_id: int) -> bool:
    """Whether `/proc/PID/cgroup` names this job.

    `12:freezer:/slurm_n1/uid_3001/job_42/step_0` or `0::/system.slice/…/job_42/step_0/user`
    """
    for line in cgroups.splitlines():
        named = (_JOB.fullmatch(part) for part in line.split("/")[1:])
        first = next((found[1] for found in named if found), "")
        if first == str(job_id):
            return True
    return False


def step_of(cgroups: str, job_id: int) -> str:
    """The step directly below the job's group, from the first line that has one."""
    for line in cgroups.splitlines():
        parts = line.split("/")[1:]
        index = next((at for at, part in enumerate(parts) if _JOB.fullmatch(part)), len(parts))
        if index + 1 < len(parts) and parts[index] == f"job_{job_id}":
            found = _STEP.fullmatch(parts[index + 1])
            if found:
                return found[1]
    return ""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Times in clock ticks."""

    name: str
    state: str
    parent: int
    cpu: int
    started: int
    """Since the node started."""


def read_stat(text: str) -> ProcessStat | None:
    """Parse `/proc/PID/stat`; the name in it may contain any character."""
    head, closing, rest = text.rpartition(")")
    _, opening, name = head.partition("(")
    fields = rest.split()
    if not (opening and closing) or len(fields) <= _START or fields[_STATE] not in _STATES:
        return None
    numbers = [figure(fields[at]) for at in (_PARENT, _USER_TIME, _SYSTEM_TIME, _START)]
    if any(each is None for each in numbers):
        return None
    parent, user, system, started = (each or 0 for each in numbers)
    return ProcessStat(name, fields[_STATE], parent, user + system, started)


@dataclass(frozen=True, slots=True)
class DescriptorFacts:
    """The fields of `/proc/PID/fdinfo/N`."""

    position: int
    flags: int
    mount_id: int
    inode: int | None
    """None with kernels before 5.14."""

    @property
    def writes(self) -> bool:
        # A descriptor opened with O_PATH has the mode of a reader.
        return self.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)

    def same_file(self, other: DescriptorFacts) -> bool:
        """Whether only the position differs."""
        return (self.flags, self.mount_id, self.inode) == (
            other.flags,
            other.mount_id,
            other.inode,
        )


def read_descriptor_facts(text: str) -> DescriptorFacts | None:
    """Parse the text; None if it is malformed."""
    fields = status_of(text)
    flags = fields.get("flags", "")
    position, mount_id = figure(fields.get("pos", "")), figure(fields.get("mnt_id", ""))
    if not re.fullmatch(r"[0-7]{1,12}", flags) or position is None or mount_id is None:
        return None
    return DescriptorFacts(position, int(flags, 8), mount_id, figure(fields.get("ino", "")))


def status_of(text: str) -> dict[str, str]:
    """The fields of `/proc/PID/status`; the first of each name counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name, value.strip())
    return fields


def read_environment(raw: bytes) -> dict[bytes, bytes]:
    """Its variables; an incomplete last one is left out."""
    parts = raw.split(b"\0")
    pairs = (each.partition(b"=") for each in parts[:-1])
    return {name: value for name, equals, value in pairs if name and equals}


def is_readable(descriptor: int, wait_s: float) -> bool:
    """Whether it has input, or its other end is closed, within that time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def has_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended."""
    return is_readable(pidfd, 0)


def environment_of(folder: int) -> dict[bytes, bytes] | None:
    """Its environment at its start; None if it can't be read."""
    raw = bytes_of("environ", _LARGEST_ENVIRONMENT, folder)
    return None if raw is None else read_environment(raw)


def text_of(folder: int, name: str, most_bytes: int = _LARGEST_FILE) -> str:
    """The text of a small file below a folder; empty if it can't be read."""
    return (bytes_of(name, most_bytes, folder) or b"").decode(errors="replace")


def bytes_of(path: str, most_bytes: int, folder: int | None = None) -> bytes | None:
    """The first bytes of a file; None if it can't be read, or its process ended meanwhile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    parts, left = [], most_bytes
    try:
        while left > 0 and (part := os.read(file, min(left, _READ_BYTES))):
            parts.append(part)
            left -= len(part)
    except OSError:
        return None
    finally:
        os.close(file)
    return b"".join(parts)


def waits_in(text: str) -> str:
    """The kernel function in `wchan`; empty if the process runs or the kernel hides it."""
    function = text.strip()
    return function if _FUNCTION.fullmatch(function) else ""


def is_python(program: str, name: str) -> bool:
    """By its executable, else by its name."""
    base = program.removesuffix(" (deleted)").rpartition("/")[2] or name
    return _PYTHON.fullmatch(base) is not None


def arguments_of(cmdline: str) -> list[str]:
    return cmdline.rstrip("\0").split("\0") if cmdline.strip("\0") else []


def command_of(arguments: Sequence[str], name: str, *, python: bool) -> str:
    """Program and script without folders; other arguments may contain secrets."""
    if not arguments:
        return f"[{name}]"[:_LONGEST_COMMAND]
    program = _base(arguments[0]) or name
    script = _script(arguments[1:]) if python else ""
    return f"{program} {script}".strip()[:_LONGEST_COMMAND]


def is_unbuffered(
    arguments: Sequence[str], environment: Mapping[bytes, bytes] | None
) -> bool | None:
    """Whether a Python writes unbuffered; None: that could not be read."""
    if _flags(arguments[1:]).unbuffered:
        return True
    if environment is None or not arguments:
        return None
    ignored = _flags(arguments[1:]).ignores_environment
    return bool(environment.get(b"PYTHONUNBUFFERED")) and not ignored


def is_piped(link: str) -> bool | None:
    """Whether a program writes to this target in blocks; None: not known.

    Decided by its name alone: reading a file on a dead share would block.
    """
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return False
    if link.startswith(("pipe:[", "socket:[")):
        return True
    if link.startswith("/dev/") and not link.startswith("/dev/shm/"):  # noqa: S108
        return None
    return True if link.startswith("/") else None


@dataclass(frozen=True, slots=True)
class _Flags:
    unbuffered: bool
    ignores_environment: bool
    rest: Sequence[str]
    """Starts with the script, `-m` or `-c`."""


def _flags(arguments: Sequence[str]) -> _Flags:
    """Parse Python's own options, which end before its script."""
    unbuffered = ignores = False
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if not argument.startswith("-") or argument == "-":
            break
        if argument.startswith("--"):
            at += 1 if "=" in argument or argument != "--check-hash-based-pycs" else 2
            continue
        for index, letter in enumerate(argument[1:], 1):
            unbuffered |= letter == "u"
            ignores |= letter in "EI"
            if letter in "cm":
                rest = argument[index + 1 :] or (
                    arguments[at + 1] if at + 1 < len(arguments) else ""
                )
                return _Flags(unbuffered, ignores, (f"-{letter}", rest))
            if letter in "WX":
                at += index + 1 == len(argument)
                break
        at += 1
    return _Flags(unbuffered, ignores, arguments[at:])


def _script(arguments: Sequence[str]) -> str:
    rest = _flags(arguments).rest
    if not rest:
        return ""
    if rest[0] == "-m" and len(rest) > 1:
        return f"-m {rest[1]}"
    return "-c" if rest[0] == "-c" else _base(rest[0])


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
