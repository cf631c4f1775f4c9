"""Facts about a job's surroundings on a node: links, mounts, tasks, GPUs, clocks. Pure.

A diagnosis uses facts besides the job's measurements. Each is what was read at one time. What could
not be read is a `FactAbsence` with the reason, and never a fact that looks healthy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FactKind(StrEnum):
    LINKS = "links"
    TRANSPORT = "transport"
    MOUNTS = "mounts"
    TASKS = "tasks"
    GPUS = "gpus"
    PEERS = "peers"
    CLOCK = "clock"
    OUTPUT = "output"
    FIGURES = "figures"
    """The job's own measurements, which a node sends along on request."""


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
    """What a port counted between two readings. None: missing in one of the two."""

    seconds: float
    rx_bytes: float | None = None
    tx_bytes: float | None = None
    packets: float | None = None
    errors: float | None = None
    waits: float | None = None
    downs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFact:
    """One network port of the node. Its counters begin when it was brought up."""

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
    """When that last happened, in seconds since 1970, if known."""
    of_job: LinkCounts | None = None
    """The same since the job was first seen here. None: no reading was made then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportFact:
    """The node's own TCP counters, since its boot or since the job was first seen here."""

    seconds: float | None = None
    """The period; None: since the node booted."""
    sent_segments: float | None = None
    retransmits: float | None = None
    received_packets: float | None = None
    ecn_marks: float | None = None
    """Packets that a switch marked because its queue was long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountFact:
    """One file system as the job sees it."""

    path: str
    kind: str
    """`nfs4`, `lustre`, `ext4`, …"""
    source: str
    answered_s: float | None = None
    """How long reading its root took; None: it did not answer."""
    waited_s: float | None = None
    """How long it has not answered, if it did not."""
    trouble: str = ""
    """The text of an error that it answered with: `Stale file handle`."""
    read_bytes: float | None = None
    write_bytes: float | None = None
    operations: float | None = None
    latency_s: float | None = None
    """Mean time of an operation since it was mounted, as the client counts."""
    retransmits: float | None = None
    timeouts: float | None = None
    counted_by: str = ""
    """What counted these: the client of the file system (`nfs`, `lustre`) for the whole node, or
    `eBPF` for the job's own calls."""
    uncounted: str = ""
    """Why nothing counted them."""
    spent_s: float | None = None
    """How long all operations took together, as `eBPF` counts."""
    disk: str = ""
    """The kernel's name of the disk below, if there is one; its counters are the whole node's."""
    disk_read_bytes: float | None = None
    disk_write_bytes: float | None = None
    disk_operations: float | None = None
    disk_spent_s: float | None = None
    """How long its operations took together, from their queue to their end."""
    disk_busy_s: float | None = None
    """How long it had work at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFact:
    """One process that does a rank's work."""

    rank: int | None
    pid: int
    state: str
    """R, S, D, T or Z, as the kernel reports."""
    waits_in: str = ""
    """The kernel function that it sleeps in, if that may be read."""
    cpu_seconds: float | None = None
    command: str = ""
    started: float | None = None
    """In seconds since 1970, by the servers' clock."""
    step: str = ""
    """Slurm's name of its step: `batch`, `0`, …"""
    python_unbuffered: bool | None = None
    """True if a Python process writes without a buffer; None: no Python, or unknown."""
    output_piped: bool | None = None
    """True if its standard output is a file or a pipe (and so is buffered by default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """One GPU of the job: what does not change every second."""

    uuid: str
    name: str = ""
    health: str = ""
    """`ok`, `warning`, `failure`; empty: not assessed."""
    words: str = ""
    pcie_width: int | None = None
    pcie_best_width: int | None = None
    nvlinks: int | None = None
    """How many of its links to other cards are up: NVLink, or XGMI of an AMD card."""
    nvlink_bytes_s: float | None = None
    """Their bandwidth in both directions together, protocol overhead included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFact:
    """What the job has sent to one address from here by TCP, and got from it, since it began."""

    address: str
    sent_bytes: float
    """And acknowledged."""
    received_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts of one job on one node, at one time."""

    node: str
    time: float
    """By the servers' clock, as all times here."""
    links: tuple[LinkFact, ...] = ()
    transport: TransportFact | None = None
    mounts: tuple[MountFact, ...] = ()
    tasks: tuple[TaskFact, ...] = ()
    gpus: tuple[GpuFact, ...] = ()
    peers: tuple[PeerFact, ...] = ()
    addresses: tuple[str, ...] = ()
    """The node's own, as others see them in `peers`."""
    clock_ahead_s: float | None = None
    """How far the node's clock is ahead of the servers'."""
    last_output: float | None = None
    """When output was last read from the job's files here; None: none since they are followed."""
    absences: tuple[FactAbsence, ...] = ()

    def absence(self, kind: FactKind) -> FactAbsence | None:
        """Why nothing of that kind is known, or else why one subject is not."""
        found = [each for each in self.absences if each.kind is kind]
        return min(found, key=lambda each: bool(each.subject), default=None)


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call on a stack. `line` is 0 and `file` empty if unknown."""

    function: str
    file: str = ""
    line: int = 0


class StackLanguage(StrEnum):
    """What a stack was read from."""

    PYTHON = "python"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """The stack of one process of a rank."""

    node: str
    rank: int | None
    pid: int
    language: StackLanguage
    frames: tuple[StackFrame, ...] = ()
    """The innermost first; for Python, those of the main thread."""
    state: str = ""
    """R, S, D, T or Z, as the kernel reports."""
    waits_in: str = ""
    """The kernel function that it sleeps in."""
    trouble: str = ""
    """Why there is no better stack."""
    command: str = ""
