"""What a diagnosis is made of: the case that rules read, and what they find. Pure.

A rule says `ok` only of what was measured. What was not is `unknown`, with the reason and with what
kind of lack it is; nothing turns the one into the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts, StackLanguage
from lattice.domain.measured import Shown
from lattice.domain.metricstore import Point
from lattice.domain.nodelook import NodeSight, NodeSilence
from lattice.domain.source import Source
from lattice.domain.telemetry import Coverage

GIB, GBIT = 1024.0**3, 1e9
NOWHERE = Coverage(0, 0)
TRACE_S = 600
"""How far back the short traces go."""


class Area(StrEnum):
    """What a line of the page is about."""

    JOB = "job"
    NETWORK = "network"
    STORAGE = "storage"
    GPU = "gpu"
    PROCESSOR = "processor"
    MEMORY = "memory"


class Verdict(StrEnum):
    """From good to bad; `unknown` is worse than ok, and no alarm."""

    OK = "ok"
    UNKNOWN = "unknown"
    ATTENTION = "attention"
    BAD = "bad"

    @property
    def is_sick(self) -> bool:
        return self in {Verdict.ATTENTION, Verdict.BAD}


_WORSE = {each: place for place, each in enumerate(Verdict)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; of none, `unknown`."""
    return max(verdicts, key=_WORSE.__getitem__, default=Verdict.UNKNOWN)


class Sense(StrEnum):
    """How a measured value stands to its target."""

    AT_MOST = "at_most"
    AT_LEAST = "at_least"
    OF = "of"
    """The target is all there could be."""


class Lack(StrEnum):
    """Why something is unknown."""

    SILENT = "silent"
    """Who would know does not answer."""
    FAILED = "failed"
    """It was tried, and did not work."""
    TOO_EARLY = "too_early"
    """It needs a second look."""
    NOT_OFFERED = "not_offered"
    """This system does not measure it, or there is nothing to measure it against."""

    @property
    def counts(self) -> bool:
        """True if the verdict on the whole can't be `ok` because of it."""
        return self is not Lack.NOT_OFFERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a finding is about; empty parts say nothing."""

    node: str = ""
    rank: int | None = None
    gpu: str = ""
    """The UUID of a card."""
    thing: str = ""
    """A link, a mount, a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the page."""

    rule: str
    title: str
    area: Area
    verdict: Verdict
    subjects: tuple[Subject, ...] = ()
    """Whom it concerns: of a sick line those that are sick."""
    measured: float | None = None
    target: float | None = None
    sense: Sense = Sense.AT_MOST
    """How the two should stand to each other."""
    unit: str = ""
    source: str = ""
    """Who measured, in the words of SRC-1, or who said so."""
    evidence: str = ""
    """One sentence with the numbers in it."""
    remedy: str = ""
    """What to do, with the command or the option of Slurm; of a sick line only."""
    reason: str = ""
    """Why nothing is known; of an unknown line only."""
    lack: Lack | None = None
    covered: Coverage = NOWHERE
    """Of how many of the job's nodes it speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTarget:
    """What a site promises of the file systems below a path."""

    path: str
    read_bytes_s: float | None = None
    write_bytes_s: float | None = None
    answers_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTarget:
    """What a site expects of links of a name; `*` stands for any letters."""

    name: str
    speed_bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What is measured against. Percentages are of a hundred."""

    mounts: tuple[MountTarget, ...] = ()
    links: tuple[LinkTarget, ...] = ()
    gpu_idle_percent: float = 10.0
    gpu_hang_percent: float = 95.0
    gpu_hang_power_of_limit: float = 0.4
    hang_s: float = 120.0
    """A job of which nothing moved for so long does not get on."""
    straggler_percent: float = 25.0
    """One that differs by less from the rest is not told apart."""
    loader_gpu_percent: float = 50.0
    memory_percent: float = 90.0
    link_error_percent: float = 0.1
    retransmit_percent: float = 1.0
    congestion_percent: float = 10.0
    mount_answers_s: float = 1.0
    io_p99_s: float = 1.0
    clock_s: float = 1.0
    quiet_s: float = 300.0
    """A job that works and writes nothing for so long is quiet."""


TraceKey: TypeAlias = tuple[Shown, str, str]
"""Which metric, of which node, of which card (empty: of the node)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that a rule may read. Times are the servers'."""

    job: JobAttempt
    now: float
    interval_s: float
    nodes: tuple[str, ...]
    groups: Mapping[str, str] = field(default_factory=dict)
    """The switch each node hangs on; empty where Slurm knows of none."""
    sights: Mapping[str, NodeSight] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    earlier: Mapping[str, NodeFacts] = field(default_factory=dict)
    """The same from a look before, for what is a rate."""
    silences: Mapping[str, NodeSilence] = field(default_factory=dict)
    """Who told nothing at all, or no facts."""
    traces: Mapping[TraceKey, tuple[Point, ...]] = field(default_factory=dict)
    """The last ten minutes from the metric store, oldest first."""
    no_traces: str = ""
    """Why there are none."""
    targets: Targets = Targets()

    @property
    def started(self) -> float:
        begun = self.job.attempt.started
        return begun.timestamp() if begun is not None else self.now

    @property
    def has_gpus(self) -> bool | None:
        """None: nobody says."""
        if self.job.allocation.gpus is not None:
            return self.job.allocation.gpus > 0
        return (
            any(sight.now.of("gpu_utilization_percent") for sight in self.sights.values()) or None
        )


class Rule(Protocol):
    """One way in which a job can be sick. Pure: everything it knows is in the case."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def area(self) -> Area: ...
    @property
    def explains(self) -> frozenset[str]:
        """Rules whose sick findings follow from a sick one of this."""

    def judge(self, case: Case) -> Iterable[Finding]:
        """At least one line, unless the rule has nothing to do with such a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagQuery:
    """What is asked. No areas: all of them."""

    areas: tuple[Area, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One page about one attempt: sick lines first, then what is unknown, then what is well."""

    allocation: str
    id: str
    name: str
    attempt: int
    state: State
    nodes: str
    """In Slurm's notation."""
    node_count: int
    started: datetime | None = None
    taken: datetime
    areas: tuple[Area, ...]
    verdict: Verdict
    words: str
    """The verdict in one sentence."""
    findings: tuple[Finding, ...]
    covered: Coverage
    took_s: float
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlace:
    """One call on a stack."""

    function: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks that stand at the same place."""

    words: str
    """`ranks 0-2: all_reduce, train.py:212`."""
    ranks: tuple[int, ...]
    subjects: tuple[Subject, ...]
    """One for each process in it."""
    language: StackLanguage
    frames: tuple[StackPlace, ...]
    """The innermost first."""
    is_odd: bool = False
    """True if it is not where most ranks are, and so is what they may wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPicture:
    """All ranks of an attempt in one picture: the odd ones first."""

    allocation: str
    id: str
    attempt: int
    taken: datetime
    words: str
    """All groups in one line."""
    groups: tuple[StackGroup, ...]
    troubles: tuple[str, ...] = ()
    """Why there is no picture, or no better one, of some."""
    covered: Coverage
    took_s: float
