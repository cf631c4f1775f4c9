"""A job as one node sees it: steps, tasks and processes, and what became of them. Pure.

A node knows no attempts. It knows that a control group appeared, with an inode, at a moment; that
is a job's identity on the node, and it stays the same while the agent restarts. The server finds
the attempt by the moment (`match_attempt`): Slurm's own restart count is ahead of the truth while
the attempt before is still COMPLETING.

One attempt can have more than one identity on a node. Where Slurm keeps no extern step there, the
group goes with the last step and comes back, with another inode, with the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from lattice.domain.allocation import Attempt

CLOCK_SLACK_S = 2.0
"""How far a node's clock may be from the controller's; more is an alert of its own."""
UNREADABLE = "processes of this job can't be read: the kernel holds whoever reads them"


class StartSign(StrEnum):
    """What told when a job began on this node."""

    FOLDER = "folder"
    """The time at which its control group was made; the same after every restart of the agent."""
    PROCESS = "process"
    """Its oldest process: the kernel no longer knew when the folder was made."""
    SEEN = "seen"
    """It was gone again before it could be read: the moment of the notice."""


@dataclass(frozen=True, slots=True, order=True)
class JobIdentity:
    """One life of a job on one node. `inode` is 0 for a job that was over before it was read."""

    boot_id: str
    job_id: int
    inode: int
    started: float
    """Wall time of the node, in seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.job_id}@{self.started:.3f}/{self.inode}/{self.boot_id}"


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process that can't be taken for a later one with the same pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks between the boot and its start."""


@dataclass(frozen=True, slots=True)
class StepId:
    """`batch`, `extern`, `interactive` or a number; a part of a het step also has an offset."""

    name: str
    het_offset: int | None = None

    @property
    def number(self) -> int | None:
        """None for the steps that srun did not start."""
        return int(self.name) if self.name.isdigit() else None

    @property
    def order(self) -> tuple[int, str, int]:
        """Steps in the order people list them: named ones, then numbers, then parts."""
        number = self.number
        return (-1 if number is None else number, self.name, self.het_offset or 0)

    def __str__(self) -> str:
        return self.name if self.het_offset is None else f"{self.name}+{self.het_offset}"


@dataclass(frozen=True, slots=True)
class NodeTask:
    """One task of a step that runs here. Without processes it is over, or about to begin."""

    id: int
    """Its number in the whole step, over all nodes."""
    processes: tuple[ProcessId, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStep:
    """One step on this node. `processes` are all of its owner's, whichever task they are of."""

    id: StepId
    tasks: tuple[NodeTask, ...] = ()
    processes: tuple[ProcessId, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Where a control group of the job is. `hierarchy` is "" for the one of cgroup v2."""

    hierarchy: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """One job on this node, as last read. `None` means that the node can't tell."""

    identity: JobIdentity
    started_by: StartSign
    uid: int | None = None
    """A hint on cgroup v2, where only its processes tell: Slurm's own word goes before it."""
    sluid: str | None = None
    """Slurm's unique id, from the folder's name (26.05 and newer)."""
    steps: tuple[NodeStep, ...] = ()
    daemons: tuple[ProcessId, ...] = ()
    """Slurm's own processes for it (slurmstepd)."""
    folders: tuple[JobFolder, ...] = ()
    unread: tuple[int, ...] = ()
    """Processes whose readers the kernel holds; those not known before are nowhere else here."""

    @property
    def id(self) -> int:
        return self.identity.job_id

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """Every process of the owner's (and of the extern step), each once."""
        return tuple(sorted({each for step in self.steps for each in step.processes}))


@dataclass(frozen=True, slots=True)
class JobAppeared:
    """A job is on the node that was not there, or that a new listener has not heard of."""

    job: NodeJob


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Its steps, tasks, processes or owner are other than before."""

    job: NodeJob
    before: NodeJob


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Slurm has cleared it away; `job` is how it was last read."""

    job: NodeJob


@dataclass(frozen=True, slots=True)
class Absence:
    """A stretch in which jobs can have come and gone unseen, in the node's wall time."""

    since: float
    until: float

    def with_(self, other: Absence) -> Absence:
        """The stretch that covers both."""
        return Absence(min(self.since, other.since), max(self.until, other.until))

    def meets(self, began: float, ended: float | None) -> bool:
        """True if nobody watched for a part of this time."""
        return self.since <= (self.until if ended is None else ended) and began <= self.until


JobEvent: TypeAlias = JobAppeared | JobChanged | JobEnded
Picture: TypeAlias = Mapping[JobIdentity, NodeJob]


def compare(before: Picture, after: Picture) -> tuple[JobEvent, ...]:
    """What happened between two pictures: ends first, so that a requeued id is never there twice.

    Law: whoever applies the events to `before` has `after`.
    """
    ended = [JobEnded(before[each]) for each in sorted(before.keys() - after.keys())]
    appeared = [JobAppeared(after[each]) for each in sorted(after.keys() - before.keys())]
    changed = [
        JobChanged(after[each], before[each])
        for each in sorted(before.keys() & after.keys())
        if before[each] != after[each]
    ]
    return (*ended, *appeared, *changed)


def match_attempt(
    attempts: Iterable[Attempt], started: float, *, slack_s: float = CLOCK_SLACK_S
) -> Attempt | None:
    """The attempt that was under way when a group appeared on a node, if any was.

    The group appears after the start that Slurm wrote down (the prolog may take minutes) and
    before the end, give or take the clocks. Where two attempts are that close, the nearer start
    is the likelier one: without a long prolog a group follows within a second.
    """
    moment = datetime.fromtimestamp(started, UTC)
    slack = timedelta(seconds=slack_s)
    possible = [
        (abs(moment - attempt.started), -attempt.number, attempt)
        for attempt in attempts
        if attempt.started is not None
        and attempt.started <= moment + slack
        and (attempt.ended is None or moment - slack <= attempt.ended)
    ]
    return min(possible, key=lambda each: each[:2])[2] if possible else None
