"""GPU slices: virtual machines with GPUs of their own, and where a job is measured. Pure.

A job that has the GPUs of a slice runs in the slice's guest. Only the guest can measure it: the
host's driver has given the GPU away, and what the host counts is the virtual machine. So readings
have two types. `HostReadings` refuses a value from a guest, and a value of a slice's GPU.
`SliceReadings` refuses every value that is not from a guest. Nothing else is accepted for a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from lattice.domain.machine_facts import MachineFact, fact_lines
from lattice.domain.metric import (
    CATALOGUE,
    Absence,
    MetricReading,
    Provenance,
    Sample,
)

GPUS_UNKNOWN = "which GPUs Slurm gave the job is not known yet, so neither is where it runs"
PART_OF_A_SLICE = "the job has only some GPUs of the slice {name}: its guest serves others too"
PARTLY_IN_A_SLICE = "the job has GPUs inside a slice and outside: no place measures all of it"
CARD_OF_A_SLICE = "this GPU is in a slice: only its guest can measure it"


class HostValueOnSlice(ValueError):
    """A value of the host for a job in a slice, or the other way round: a defect in the code."""


@dataclass(frozen=True, slots=True)
class OnHost:
    """The job runs on the node itself."""


@dataclass(frozen=True, slots=True)
class InSlices:
    """The job runs in these slices, and has all of their GPUs."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """It is not known where the job runs, or it runs where nothing can measure it alone."""

    reason: str


JobSite: TypeAlias = OnHost | InSlices | Unplaced


@dataclass(frozen=True, slots=True)
class SliceGpus:
    """A slice and its GPUs, by Slurm's numbers on the node."""

    name: str
    gpus: tuple[int, ...]


def site_of(gpus: tuple[int, ...] | None, slices: Sequence[SliceGpus]) -> JobSite:
    """Where a job with these GPUs runs; None: they are not known yet."""
    if not slices:
        return OnHost()
    if gpus is None:
        return Unplaced(GPUS_UNKNOWN)
    wanted = set(gpus)
    inside = [each for each in slices if wanted.intersection(each.gpus)]
    if not inside:
        return OnHost()
    for each in inside:
        if not wanted.issuperset(each.gpus):
            return Unplaced(PART_OF_A_SLICE.format(name=each.name))
    if wanted.difference(*(each.gpus for each in inside)):
        return Unplaced(PARTLY_IN_A_SLICE)
    return InSlices(tuple(each.name for each in inside))


@dataclass(frozen=True, slots=True)
class HostReadings:
    """Readings of a job on the node itself. Raises `HostValueOnSlice`."""

    readings: tuple[MetricReading, ...]
    slice_cards: AbstractSet[str] = field(default=frozenset(), repr=False)
    """The UUIDs of the GPUs that are in slices."""

    def __post_init__(self) -> None:
        for each in self.readings:
            if not isinstance(each, Sample):
                continue
            if each.source is Provenance.SLICE_GUEST:
                raise HostValueOnSlice(f"{each.metric} of a guest for a job on the host")
            if self.slice_cards and each.label("gpu_uuid") in self.slice_cards:
                raise HostValueOnSlice(f"{each.metric} of the host for a GPU in a slice")


def without_slice_cards(
    readings: Iterable[MetricReading], cards: AbstractSet[str]
) -> Iterable[MetricReading]:
    """The readings, with an absence instead of each value of a GPU in a slice."""
    if not cards:
        return readings
    return (
        Absence(each.metric, CARD_OF_A_SLICE, "", each.labels)
        if isinstance(each, Sample) and each.label("gpu_uuid") in cards
        else each
        for each in readings
    )


@dataclass(frozen=True, slots=True)
class SliceReadings:
    """Readings of a job in slices. Raises `HostValueOnSlice`."""

    readings: tuple[MetricReading, ...]

    def __post_init__(self) -> None:
        for each in self.readings:
            if isinstance(each, Sample) and each.source is not Provenance.SLICE_GUEST:
                raise HostValueOnSlice(f"{each.metric} of {each.source.value} for a slice")


JobReadings: TypeAlias = HostReadings | SliceReadings


def nothing_measured(reason: str, last_error: str = "") -> SliceReadings:
    """An absence for every metric: no place may measure the job."""
    return SliceReadings(tuple(Absence(each, reason, last_error) for each in CATALOGUE))


class SliceState(StrEnum):
    """Whether the guest of a slice reports."""

    UNKNOWN = "unknown"
    """It was not asked yet."""
    HEALTHY = "healthy"
    WARNING = "warning"
    """It reports, and something in the report is wrong."""
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCard:
    """One GPU of a guest."""

    uuid: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePort:
    """A network port of a guest, or a port of one of its RDMA devices."""

    name: str
    kind: str = ""
    up: bool = False
    speed_bits: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStart:
    """What the agent found when it first reached a guest after its boot."""

    boot_id: str = ""
    reached: datetime
    facts: tuple[MachineFact, ...] = ()
    reason: str = ""
    """Why there are no facts of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGuest:
    """A slice as its owner sees it: what its guest reports, and nothing of the host."""

    name: str
    gpus: tuple[int, ...] = ()
    """By Slurm's numbers on the node."""
    state: SliceState = SliceState.UNKNOWN
    reason: str = ""
    """Why its guest does not report."""
    last_error: str = ""
    faults: tuple[str, ...] = ()
    cards: tuple[SliceCard, ...] = ()
    ports: tuple[SlicePort, ...] = ()
    start: SliceStart | None = None
    """None: it was not reached yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceHost:
    """The host's side of a slice, for operators alone."""

    address: str = ""
    """Where the agent reaches the guest."""
    bridge: str = ""
    netdata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlice:
    """A slice as its node's agent reports it."""

    guest: SliceGuest
    host: SliceHost


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSlice:
    """A slice that an allocation runs in. It has no field for the host's side."""

    node: str
    guest: SliceGuest


def slice_text(guest: SliceGuest) -> str:
    """The slice in one line, for people."""
    count = f"{len(guest.gpus)} GPU{'' if len(guest.gpus) == 1 else 's'}"
    error = f" ({guest.last_error})" if guest.last_error else ""
    trouble = [f"{guest.reason}{error}"] if guest.reason else list(guest.faults)
    return f"{guest.name}: {count}, {'; '.join((guest.state.value, *trouble))}"


def start_text(guest: SliceGuest) -> str:
    """What was found when the guest was first reached after its boot; empty if it never was."""
    if guest.start is None:
        return ""
    parts = [f"{title} {value}" for title, value in fact_lines(guest.start.facts)]
    if guest.start.reason:
        parts.append(guest.start.reason)
    return f"at its start: {'; '.join(parts)}"


def ports_text(guest: SliceGuest) -> str:
    """The network ports of the guest in one line."""
    return ", ".join(_port_text(each) for each in guest.ports)


def _port_text(port: SlicePort) -> str:
    speed = f" {port.speed_bits / 1e9:g} Gbit/s" if port.up and port.speed_bits else ""
    return f"{port.name} {'up' if port.up else 'down'}{speed}"
