"""Which files a job's script writes, and whether they can be read here.

slurmctld names them while it has the job. Afterwards slurmdbd has a name from 24.11 on. Before
that, only the folder is known, and Slurm's default name is tried. A file of that name counts only
if its owner and its time fit the job.

The names are the caller's own text, and the files are opened with the caller's rights.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath

from lattice.base.errors import NotFound, Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.last_output import LastOutput
from lattice.domain.logs import LogKind
from lattice.domain.nodeset import NodeSet
from lattice.domain.outputs import JobFiles

_FIELD = re.compile(r"%(?:%|([0-9]*)([A-Za-z]))")
_SLACK_S = 300.0
"""A script may write for a while after Slurm has noted its end."""


@dataclass(frozen=True, slots=True)
class LocalOutput:
    """The files of a job's script by kind, and the node that writes them; or why there are none."""

    node: str
    paths: Mapping[LogKind, str] = field(default_factory=dict)
    reason: str = ""
    assumed: bool = False
    """True if the name is Slurm's default and not what Slurm said."""


class OutputFinder:
    """Finds the files of jobs. It is the port `LastOutputs`, too."""

    def __init__(self, job_files: JobFiles) -> None:
        self._job_files = job_files

    async def find(self, allocation: Allocation) -> LocalOutput:
        """The files, whether they exist or not. Raises `Unavailable`."""
        node = _first_node(allocation)
        try:
            named = await self._job_files.of(allocation)
        except (NotFound, Unavailable):
            # Past the time for which slurmctld has it, or slurmctld does not answer.
            return _from_record(allocation, node)
        node = named.host or node
        paths = {kind: _expanded(path, allocation, node) for kind, path in named.files.items()}
        known = {kind: path for kind, path in paths.items() if path}
        if known:
            return LocalOutput(node, known)
        if paths:
            return LocalOutput(
                node,
                reason=f"its name {next(iter(named.files.values()))} has "
                "fields that only Slurm can fill in",
            )
        if allocation.started is not None and not named.host:
            return LocalOutput(
                node,
                reason="it has no script: `srun` and `salloc` write to the "
                "terminal they were started in",
            )
        return LocalOutput(node, reason="it writes to no file")

    async def of(self, allocation: Allocation) -> LastOutput | None:
        """When a running job last wrote, from the time of its file."""
        if allocation.started is None or allocation.state.finished:
            return None
        found = await self.find(allocation)
        times = [each.st_mtime for path in found.paths.values() if (each := status_of(path))]
        if not times:
            reason = found.reason or "its output file is not on this machine"
            return LastOutput(nodes=1, answered=0, trouble=reason)
        return LastOutput(time=datetime.fromtimestamp(max(times), UTC), nodes=1, answered=1)


def status_of(path: str) -> os.stat_result | None:
    """Of a regular file; None for anything else."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def open_output(path: str) -> int:
    """A descriptor for reading. Raises `OSError`, also for what is no regular file."""
    # A pipe would block, and a terminal would become ours.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no regular file")
    return descriptor


def _from_record(allocation: Allocation, node: str) -> LocalOutput:
    """From what slurmdbd or slurmctld said of the job itself."""
    if allocation.output:
        path = _expanded(allocation.output, allocation, node)
        if not path:
            return LocalOutput(node, reason="Slurm has only a pattern of its name")
        if path == "/dev/null":
            return LocalOutput(node, reason="it writes to /dev/null")
        return LocalOutput(node, {LogKind.STDOUT: path})
    if not allocation.work_dir.startswith("/"):
        return LocalOutput(node, reason="Slurm does not know its output file any more")
    path = str(PurePosixPath(allocation.work_dir) / f"slurm-{allocation.id}.out")
    if not _fits(path, allocation):
        reason = f"Slurm does not know its output file any more, and it is not {path}"
        return LocalOutput(node, reason=reason)
    return LocalOutput(node, {LogKind.STDOUT: path}, assumed=True)


def _fits(path: str, allocation: Allocation) -> bool:
    """Whether the file can be the job's, by its owner and its time."""
    found = status_of(path)
    if found is None or found.st_uid != os.geteuid() or allocation.started is None:
        return False
    started = allocation.started.timestamp()
    ended = allocation.ended.timestamp() if allocation.ended else found.st_mtime
    return started - _SLACK_S <= found.st_mtime <= ended + _SLACK_S


def _first_node(allocation: Allocation) -> str:
    try:
        return next(iter(NodeSet.parse(allocation.nodes)), "")
    except ValueError:
        return ""


def _expanded(pattern: str, allocation: Allocation, node: str) -> str:
    """The path with its fields filled in; empty if one of them is not known."""
    array = allocation.array
    values: dict[str, str | None] = {
        "j": str(allocation.job_id),
        "J": str(allocation.job_id),
        "A": str(array.job_id if array else allocation.job_id),
        "a": None if array is None or array.task_id is None else str(array.task_id),
        "x": allocation.name,
        "u": allocation.user,
        "N": node.partition(".")[0] or None,
        "n": "0",
        "t": "0",
        "s": "batch",
    }
    unknown = False

    def value(found: re.Match[str]) -> str:
        nonlocal unknown
        if found[0] == "%%":
            return "%"
        text = values.get(found[2])
        if text is None or len(found[1]) > 2:
            unknown = True
            return ""
        return text.rjust(int(found[1] or 0), "0") if text.isdigit() else text

    path = _FIELD.sub(value, pattern)
    if unknown or not path:
        return ""
    return path if path.startswith("/") else str(PurePosixPath(allocation.work_dir) / path)
