"""The data of a diagnosis: the case that rules read, and their findings. Pure.

A rule returns `ok` only for what was measured. The rest is `unknown`, with the reason and the kind
of lack. Nothing converts one into the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

from lattice.base.errors import UsageError
from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts, StackLanguage
from lattice.domain.measured import Shown
from lattice.domain.metricstore import Point
from lattice.domain.node_snapshot import NodeSnapshot, NodeUnreachable
from lattice.domain.source import Source
from lattice.domain.telemetry import Coverage
from lattice.observe.thresholds import Thresholds

GIB = 1024.0**3
NOWHERE = Coverage(0, 0)
TRACE_S = 600
"""The range of the traces in seconds."""


class Area(StrEnum):
    """The topic of a line of the page."""

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


GRAVITY = {each: index for index, each in enumerate(Verdict)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of them; `unknown` for none."""
    return max(verdicts, key=GRAVITY.__getitem__, default=Verdict.UNKNOWN)


class Sense(StrEnum):
    """How a measured value relates to its target."""

    AT_MOST = "at_most"
    AT_LEAST = "at_least"
    OF = "of"
    """The target is the maximum."""


class Lack(StrEnum):
    """Why something is unknown."""

    SILENT = "silent"
    """The source does not answer."""
    FAILED = "failed"
    """The measurement failed."""
    TOO_EARLY = "too_early"
    """It needs a second look."""
    NOT_OFFERED = "not_offered"
    """This system does not measure it, or there is nothing to compare it with."""

    @property
    def counts(self) -> bool:
        """True if it prevents the overall verdict `ok`."""
        return self is not Lack.NOT_OFFERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a finding is about; unused parts are empty."""

    node: str = ""
    rank: int | None = None
    gpu: str = ""
    """The UUID of a GPU."""
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
    """The subjects concerned; of a faulty line the faulty ones."""
    measured: float | None = None
    target: float | None = None
    sense: Sense = Sense.AT_MOST
    """How the two should relate."""
    unit: str = ""
    source: str = ""
    """Who measured it, in the terms of SRC-1, or who reported it."""
    evidence: str = ""
    """One sentence with the numbers."""
    remedy: str = ""
    """What to do, with the command or the Slurm option; only for a fault."""
    reason: str = ""
    """Why nothing is known; only for an unknown line."""
    lack: Lack | None = None
    covered: Coverage = NOWHERE
    """How many of the job's nodes it covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTarget:
    """A site's guarantee for the file systems below a path."""

    path: str
    read_bytes_s: float | None = None
    write_bytes_s: float | None = None
    answers_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTarget:
    """The expected speed of links with this name; `*` matches any characters."""

    name: str
    speed_bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets(Thresholds):
    """The values that jobs are compared with: thresholds and the site's guarantees."""

    mounts: tuple[MountTarget, ...] = ()
    links: tuple[LinkTarget, ...] = ()


TraceKey: TypeAlias = tuple[Shown, str, str]
"""A metric, a node, and a GPU (empty for the whole node)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All data that a rule may read. Times are by the servers' clock."""

    job: JobAttempt
    now: float
    interval_s: float
    nodes: tuple[str, ...]
    groups: Mapping[str, str] = field(default_factory=dict)
    """The switch of each node; empty if Slurm has no topology."""
    sights: Mapping[str, NodeSnapshot] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    earlier: Mapping[str, NodeFacts] = field(default_factory=dict)
    """The facts of an earlier look, for rates."""
    silences: Mapping[str, NodeUnreachable] = field(default_factory=dict)
    """Nodes that did not answer, or sent no facts."""
    traces: Mapping[TraceKey, tuple[Point, ...]] = field(default_factory=dict)
    """The last ten minutes from the metric store, oldest first."""
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What is wrong with a node's own agent."""
    no_traces: str = ""
    """Why there are no traces."""
    targets: Targets = Targets()

    @property
    def started(self) -> float:
        begun = self.job.attempt.started
        return begun.timestamp() if begun is not None else self.now

    @property
    def has_gpus(self) -> bool | None:
        """None if unknown."""
        if self.job.allocation.gpus is not None:
            return self.job.allocation.gpus > 0
        return (
            any(snapshot.now.of("gpu_utilization_percent") for snapshot in self.sights.values())
            or None
        )


class DiagRule(Protocol):
    """A check for one kind of fault. Pure: all its data is in the case."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def area(self) -> Area: ...
    @property
    def explains(self) -> frozenset[str]:
        """Rules with findings that are consequences of a fault of this rule."""

    def judge(self, case: Case) -> Iterable[Finding]:
        """Yield at least one line, unless the rule does not apply to the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagQuery:
    """A request. No areas stands for all of them."""

    areas: tuple[Area, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A page about one attempt: faults first, then unknown lines, then good ones."""

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
    """Ranks at the same place in the code."""

    words: str
    """Such as `ranks 0-2: all_reduce, train.py:212`."""
    ranks: tuple[int, ...]
    subjects: tuple[Subject, ...]
    """One per process."""
    language: StackLanguage
    frames: tuple[StackPlace, ...]
    """Innermost first."""
    is_odd: bool = False
    """True if most ranks are elsewhere and may wait for this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPicture:
    """All ranks of an attempt in groups, outliers first."""

    allocation: str
    id: str
    attempt: int
    taken: datetime
    words: str
    """All groups in one line."""
    groups: tuple[StackGroup, ...]
    troubles: tuple[str, ...] = ()
    """Why some stacks are missing or incomplete."""
    covered: Coverage
    took_s: float


def areas_named(names: Iterable[str]) -> tuple[Area, ...]:
    """Return the areas with these names, each once. Raises `UsageError`."""
    try:
        return tuple(dict.fromkeys(Area(each) for each in names))
    except ValueError:
        there = ", ".join(each.value for each in Area)
        raise UsageError("That is no area.", hint=f"There are {there}.") from None
