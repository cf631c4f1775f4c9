"""What a node can tell about a job's surroundings: links, mounts, tasks, cards, clocks. Pure.

Facts are what a diagnosis rests on, beside what was measured of the job itself. Each says what was
read and when; what could not be read is a `FactAbsence` with the reason, and never a fact that
looks well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FactKind(StrEnum):
    """What can be known or not."""

    LINKS = "links"
    TRANSPORT = "transport"
    MOUNTS = "mounts"
    TASKS = "tasks"
    GPUS = "gpus"
    CLOCK = "clock"
    OUTPUT = "output"
    FIGURES = "figures"
    """What is measured of the job itself; a node that is asked for it tells it beside."""


@dataclass(frozen=True, slots=True)
class FactAbsence:
    """Why a kind of fact, or one of its subjects, is not known."""

    kind: FactKind
    reason: str
    subject: str = ""
    last_error: str = ""


class LinkKind(StrEnum):
    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"
    SLINGSHOT = "slingshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounts:
    """How much a port counted between two looks. None: one of the two did not tell."""

    seconds: float
    rx_bytes: float | None = None
    tx_bytes: float | None = None
    packets: float | None = None
    errors: float | None = None
    waits: float | None = None
    downs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFact:
    """One network port of the node. Its own counters count since it was brought up."""

    name: str
    kind: LinkKind
    up: bool
    speed_bits: float | None = None
    best_speed_bits: float | None = None
    """What the port can do, or what the site expects of it."""
    rx_bytes: float | None = None
    tx_bytes: float | None = None
    packets: float | None = None
    errors: float | None = None
    waits: float | None = None
    """Congestion as the port counts it: `port_xmit_wait`, cxi pauses, ECN marks."""
    waits_unit: str = ""
    downs: float | None = None
    """How often its carrier was lost."""
    changed: float | None = None
    """When that last happened, in seconds since 1970, where it is known."""
    of_job: LinkCounts | None = None
    """The same since the job was first seen here. None: nobody looked then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportFact:
    """What the node's own TCP counted, since it started or since the job was first seen here."""

    seconds: float | None = None
    """Over how long; None: since the node started."""
    sent_segments: float | None = None
    retransmits: float | None = None
    received_packets: float | None = None
    ecn_marks: float | None = None
    """Packets that a switch marked on their way, because its queue was long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountFact:
    """One file system as the job sees it."""

    path: str
    kind: str
    """`nfs4`, `lustre`, `ext4`, …"""
    source: str
    answered_s: float | None = None
    """How long a look at its root took; None: it did not answer."""
    waited_s: float | None = None
    """For how long it has not answered, where it did not."""
    trouble: str = ""
    """What it said where it answered with an error: `Stale file handle`."""
    read_bytes: float | None = None
    write_bytes: float | None = None
    operations: float | None = None
    latency_s: float | None = None
    """Mean time of an operation since it was mounted, as the client counts."""
    retransmits: float | None = None
    timeouts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFact:
    """One process that does a rank's work."""

    rank: int | None
    pid: int
    state: str
    """R, S, D, T or Z, as the kernel says."""
    waits_in: str = ""
    """The kernel function it sleeps in, where that may be read."""
    cpu_seconds: float | None = None
    command: str = ""
    started: float | None = None
    """In seconds since 1970, by the servers' clock."""
    step: str = ""
    """Slurm's name of its step: `batch`, `0`, …"""
    python_unbuffered: bool | None = None
    """Whether a Python writes through at once; None: no Python, or not known."""
    output_piped: bool | None = None
    """Whether its standard output is a file or a pipe (and so is buffered by default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """One card of the job: what does not change every second."""

    uuid: str
    name: str = ""
    health: str = ""
    """`ok`, `warning`, `failure`; empty: nobody judged."""
    words: str = ""
    pcie_width: int | None = None
    pcie_best_width: int | None = None
    nvlinks: int | None = None
    """How many of its NVLinks are up."""
    nvlink_bytes_s: float | None = None
    """What those can carry, both ways together and with the protocol's own bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts of one job on one node, at one moment."""

    node: str
    time: float
    """By the servers' clock, as all times here."""
    links: tuple[LinkFact, ...] = ()
    transport: TransportFact | None = None
    mounts: tuple[MountFact, ...] = ()
    tasks: tuple[TaskFact, ...] = ()
    gpus: tuple[GpuFact, ...] = ()
    clock_ahead_s: float | None = None
    """By how much the node's clock is ahead of the servers'."""
    last_output: float | None = None
    """When output was last read of the job's files here; None: none since it is followed."""
    absences: tuple[FactAbsence, ...] = ()

    def absence(self, kind: FactKind) -> FactAbsence | None:
        """Why nothing of that kind is known; else why one subject is not."""
        found = [each for each in self.absences if each.kind is kind]
        return min(found, key=lambda each: bool(each.subject), default=None)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack. `line` is 0 and `file` empty where that is not known."""

    function: str
    file: str = ""
    line: int = 0


class StackLanguage(StrEnum):
    """What a stack was read from."""

    PYTHON = "python"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """Where one process of a rank stands."""

    node: str
    rank: int | None
    pid: int
    language: StackLanguage
    frames: tuple[Frame, ...] = ()
    """The innermost first; of Python, those of the main thread."""
    state: str = ""
    """R, S, D, T or Z, as the kernel says."""
    waits_in: str = ""
    """The kernel function it sleeps in."""
    trouble: str = ""
    """Why there is no better picture of it."""
    command: str = ""
