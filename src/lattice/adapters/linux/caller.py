"""Who is at the other end of a unix socket: the process, its owner, and the job it is in.

The kernel notes who connected. A connection can be handed on, and the process that made it can end;
then another one may have its number. So a descriptor holds the process while its control group is
read. From Linux 6.5 on the kernel gives one of the very process that connected. On older kernels
the number is all there is. A process of the same account, and only of that one, could have taken it
in the moment between.

A job's folders are those that Slurm made, as read by `NodeJobs`. A folder's name proves nothing:
below a step people may make folders themselves.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lattice.domain.nodejobs import JobFolder, NodeJob

_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")
_PEER_DESCRIPTOR = 77
"""SO_PEERPIDFD."""
_LARGEST = 64 * 1024
_UNIFIED = "unified"
"""Where hybrid hosts mount the tree of v2."""


class CallerUnknown(Exception):
    """The process can't be known for certain. The text is for the log."""


@dataclass(frozen=True, slots=True)
class CallingProcess:
    """The process that connected."""

    pid: int
    uid: int
    cgroup: str
    """Its `/proc/PID/cgroup`."""


def caller_of(connection: socket.socket, proc: Path = Path("/proc")) -> CallingProcess:
    """The process that made this connection. Raises `CallerUnknown`."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if pid <= 0 or uid < 0:
        raise CallerUnknown("it has no number here")
    try:
        held = _of_peer(connection)
        is_certain = held is not None
        if held is None:
            held = os.pidfd_open(pid)
    except OSError as error:
        raise CallerUnknown(f"process {pid}: {error.strerror}") from None
    try:
        folder = proc / str(pid)
        # Of a process that can't be dumped, this is root.
        owner = uid if is_certain else folder.stat().st_uid
        with (folder / "cgroup").open("rb") as file:
            cgroup = file.read(_LARGEST).decode(errors="replace")
        if _has_ended(held):
            raise CallerUnknown(f"process {pid} has ended")
    except OSError as error:
        raise CallerUnknown(f"process {pid}: {error.strerror}") from None
    finally:
        os.close(held)
    if owner != uid:
        raise CallerUnknown(f"process {pid} is not the one that connected")
    return CallingProcess(pid, uid, cgroup)


def job_of_caller(caller: CallingProcess, jobs: Iterable[NodeJob], root: Path) -> NodeJob | None:
    """The job in whose control group the process is. `root` is where control groups are mounted."""
    groups = dict(_groups(caller.cgroup, root))
    for job in jobs:
        # The first one decides which processes are the job's.
        for folder in job.folders[:1]:
            if any(_is_below(path, folder) for path in groups.get(folder.hierarchy, ())):
                return job
    return None


def _of_peer(connection: socket.socket) -> int | None:
    """A descriptor of the process; None on a kernel that gives none."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _PEER_DESCRIPTOR, _DESCRIPTOR.size)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise
    return int(_DESCRIPTOR.unpack(raw)[0])


def _has_ended(held: int) -> bool:
    poll = select.poll()
    poll.register(held, select.POLLIN)
    return bool(poll.poll(0))


def _groups(text: str, root: Path) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Folders of the process by hierarchy. That of v2 has no name, and may be in two places."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            yield "", (f"{root}{path}", f"{root}/{_UNIFIED}{path}")
            continue
        mounted = names.removeprefix("name=")
        for name in {mounted, *mounted.split(",")}:
            yield name, (f"{root}/{mounted}{path}", f"{root}/{name}{path}")


def _is_below(path: str, folder: JobFolder) -> bool:
    return path == folder.path or path.startswith(f"{folder.path}/")
