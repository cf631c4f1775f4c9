"""Which processes of a job hold the files that Slurm writes for it, and for which step.

These are the first processes of a step (children of slurmstepd), `srun`, and slurmstepd itself if
it labels lines. Files that a script redirects for its own children are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lattice.domain.loglabels import is_named, labelled_names
from lattice.domain.logs import LogKind, LogSource
from lattice.domain.nodejobs import NodeJob
from lattice.domain.outputs import OutputFile

_TITLE = re.compile(r"slurmstepd: \[\d+\.(batch|extern|interactive|\d+(?:\+\d+)?)\]")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What every user may read of a process."""

    parent: int
    name: str
    title: str = ""
    """Its arguments, separated by NULs."""


@dataclass(frozen=True, slots=True)
class LogWriter:
    """A process to ask about, and its step. `daemon`: it is slurmstepd, not a task."""

    pid: int
    step: str
    daemon: bool = False
    labels: tuple[str, ...] = ()
    """The names of the files in which it writes each line's task before the line."""


WriterCheck = Callable[[int], ProcessInfo | None]


def writers_of(job: NodeJob, read_process: WriterCheck) -> tuple[LogWriter, ...]:
    """Each process at most once; those that ended meanwhile are left out.

    Unreadable processes are left out too. A task starts as a copy of slurmstepd, which opens its
    files before it runs the program; it is left for a later look.
    """
    daemons = {each.pid for each in job.daemons}
    found: dict[int, LogWriter] = {}
    for step in (each for each in job.steps if each.id.name != "extern"):
        inside = {process.pid for process in step.processes}
        for pid in sorted(inside.difference(job.unread)):
            seen = read_process(pid)
            if seen is None:
                continue
            first = seen.parent in daemons or seen.parent not in inside
            if (first and seen.name != "slurmstepd") or seen.name == "srun":
                labels = labelled_names(seen.title.split("\0")) if seen.name == "srun" else ()
                found.setdefault(pid, LogWriter(pid, str(step.id), labels=labels))
    for pid in sorted(daemons.difference(job.unread)):
        seen = read_process(pid)
        title = _TITLE.match(seen.title) if seen else None
        if title is not None and title[1] not in {"extern", "batch"}:
            found.setdefault(pid, LogWriter(pid, title[1], daemon=True))
    return tuple(found.values())


def noted_writers(files: Iterable[OutputFile]) -> tuple[LogWriter, ...]:
    """The processes in notes: this agent may never have seen them."""
    found: dict[int, LogWriter] = {}
    for each in (holder for file in files for holder in file.holders if holder.step):
        found.setdefault(each.pid, LogWriter(each.pid, each.step, daemon=each.daemon))
    return tuple(found.values())


def is_nameless(file: OutputFile, writers: Iterable[LogWriter]) -> bool:
    """True while only slurmstepd holds it: its task is known after the task has begun."""
    daemons = {each.pid for each in writers if each.daemon}
    return bool(file.holders) and all(each.pid in daemons for each in file.holders)


def is_held_by_daemon(file: OutputFile, writers: Iterable[LogWriter]) -> bool:
    """True if slurmstepd holds it while a task of its step runs. Noted holders don't count."""
    known = tuple(writers)
    holding = {each.pid for each in file.holders if not each.step}
    steps = {each.step for each in known if each.daemon and each.pid in holding}
    return any(not each.daemon and each.step in steps for each in known)


def is_labelled(file: OutputFile, writers: Iterable[LogWriter]) -> bool:
    """True if only srun holds it, with an option to label it.

    Descriptors 0 to 2 of srun come from the script, which may have written to them.
    """
    labels = {each.pid: each.labels for each in writers}
    return bool(file.holders) and all(
        each.descriptor > 2 and any(is_named(file.path, name) for name in labels.get(each.pid, ()))
        for each in file.holders
    )


def stream_of(
    file: OutputFile, writers: Iterable[LogWriter], taken: Iterable[tuple[LogKind, LogSource]]
) -> tuple[LogKind, LogSource]:
    """The name of a file: by its holders, and different from those already taken."""
    by_pid = {each.pid: each for each in writers}
    held = [(each, by_pid[each.pid]) for each in file.holders if each.pid in by_pid]
    # The descriptor number in slurmstepd does not show whether it is stdout or stderr.
    descriptors = {each.descriptor for each, writer in held if not writer.daemon}
    kind = LogKind.STDERR if descriptors == {2} else LogKind.STDOUT
    steps = sorted({writer.step for _, writer in held}) or ["batch"]
    step = "batch" if "batch" in steps else steps[0]
    ranks = {each.rank for each, writer in held if not writer.daemon}
    rank = ranks.pop() if len(ranks) == 1 and step not in {"batch", "extern"} else -1
    source = LogSource(step, rank if rank >= 0 else None)
    known = set(taken)
    while (kind, source) in known:
        source = LogSource(step, source.task, source.copy + 1)
    return kind, source
