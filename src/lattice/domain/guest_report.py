"""What the guest of a slice reports about itself, and its check against the host. Pure.

The guest belongs to the job's owner, so nothing in its report is believed without a check. The
parser accepts only the published form. A number that only the host can have measured is refused. It
came from a wrong address, or from a card that was never given to the guest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lattice.base.strictjson import read_json
from lattice.base.text import inert
from lattice.domain.machine_facts import BadMachineFacts, MachineFact, read_facts
from lattice.domain.metric import (
    CATALOGUE,
    Absence,
    MetricReading,
    NotMeasured,
    Per,
    Provenance,
    Sample,
    labelled,
)
from lattice.domain.slices import SliceReadings

VERSION = 1
MOST_BYTES = 256 * 1024
NOT_IN_GUEST = "the guest of a slice does not report it"
CARD_LOST = "the card fell off the bus"
NOT_REPORTED = "this card does not tell it"
NO_NUMBER = "the guest told no number"
NO_GPU = "the guest has no GPU"
ONE_SILENT = "another slice of the job does not report"
_MOST_GPUS, _MOST_NICS = 64, 256
_LONGEST = 200
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{3,79}", re.ASCII)
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NAME = re.compile(r"[!-~]{1,64}")
_LARGEST = 1e18
_GIB = 2**30
_MEMORY_TOLERANCE = 0.1
_THROTTLED, _MEMORY_USED = "gpu_throttled", "gpu_memory_used_bytes"
_MEMORY_TOTAL = "gpu_memory_total_bytes"
REASONS = ("hw_slowdown", "hw_thermal", "power_brake", "sw_power_cap", "sw_thermal")
OF_A_CARD = tuple(
    name
    for name, metric in CATALOGUE.items()
    if metric.per is Per.GPU and metric.label_names == ("gpu_uuid",)
)
"""Figures of a card in a report, in the units of the catalogue."""
OF_THE_GUEST = (
    "cpu_seconds_total",
    "cpu_cores",
    "memory_used_bytes",
    "memory_cache_bytes",
    "memory_limit_bytes",
    "network_tx_bytes_total",
    "network_rx_bytes_total",
)
"""Figures of the guest as a whole: the job has all of it."""
_OF_THE_JOB_ALONE = (("scope", "job"),)


class BadReport(ValueError):
    """The text is not a report; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestGpu:
    """One GPU, as the guest's driver shows it. `figures` has only what was measured."""

    uuid: str
    name: str = ""
    lost: str = ""
    """The driver's error if the card does not answer."""
    figures: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    """The driver's error for each figure that it does not give."""
    throttled: tuple[str, ...] | None = None
    """Why it is slowed down; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestNic:
    """One network port, or one port of an RDMA device, in the guest."""

    name: str
    kind: str
    """`ethernet`, `infiniband` or `rdma`."""
    up: bool
    speed_bits: float | None = None
    rx_bytes: float | None = None
    tx_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestReport:
    """One report. A figure that was not measured is not in it."""

    boot_id: str
    gpus: tuple[GuestGpu, ...] = ()
    gpu_reason: str = ""
    """Why no GPU could be read; empty if the driver answered."""
    gpu_error: str = ""
    """The driver's own message."""
    figures: Mapping[str, float] = field(default_factory=dict)
    nics: tuple[GuestNic, ...] = ()
    uptime_s: float | None = None
    """Since the guest's boot."""
    driver_s: float | None = None
    """How long the driver took to answer."""
    facts: tuple[MachineFact, ...] = ()
    """Of the machine; empty if they were not asked for, or can't be read there."""

    @property
    def memory_bytes(self) -> float | None:
        """The memory of the guest."""
        return self.figures.get("memory_limit_bytes")


def read_report(raw: bytes) -> GuestReport:
    """Parse what the guest printed. Raises `BadReport` and nothing else."""
    if len(raw) > MOST_BYTES:
        raise BadReport(f"longer than {MOST_BYTES} bytes")
    try:
        found = _versioned(read_json(raw))
        gpu = _fields(found.get("gpu", {}))
        return GuestReport(
            boot_id=_matching(_BOOT_ID, found.get("boot_id"), "boot id"),
            gpus=tuple(_gpu(each) for each in _list(gpu.get("cards", []), _MOST_GPUS)),
            gpu_reason=_text(gpu.get("reason", "")),
            gpu_error=_text(gpu.get("last_error", "")),
            figures=_figures(found.get("figures", {}), OF_THE_GUEST),
            nics=tuple(_nic(each) for each in _list(found.get("nics", []), _MOST_NICS)),
            uptime_s=_figures(found, ("uptime_seconds",)).get("uptime_seconds"),
            driver_s=_figures(gpu, ("seconds",)).get("seconds"),
            facts=read_facts(found["machine"]) if found.get("machine") is not None else (),
        )
    except BadReport:
        raise
    except BadMachineFacts as error:
        raise BadReport(str(error)) from None
    except ValueError:
        raise BadReport("no valid JSON") from None


def _versioned(value: Any) -> dict[str, Any]:
    found = _fields(value)
    if found.get("version") != VERSION:
        raise BadReport("of another version")
    return found


def _gpu(value: Any) -> GuestGpu:
    found = _fields(value)
    throttled = found.get("throttled")
    failed = {
        metric: _text(text)
        for metric, text in _fields(found.get("failed", {})).items()
        if metric in OF_A_CARD
    }
    return GuestGpu(
        uuid=_matching(_UUID, found.get("uuid"), "UUID"),
        name=_text(found.get("name", "")),
        lost=_text(found.get("lost", "")),
        figures=_figures(found.get("figures", {}), OF_A_CARD),
        failed=failed,
        throttled=None
        if throttled is None
        else tuple(each for each in REASONS if each in _list(throttled, len(REASONS))),
    )


def _nic(value: Any) -> GuestNic:
    found = _fields(value)
    kind = found.get("kind")
    if kind not in {"ethernet", "infiniband", "rdma"} or type(found.get("up")) is not bool:
        raise BadReport("a network port without kind or state")
    numbers = _figures(found, ("speed_bits", "rx_bytes", "tx_bytes"))
    name = _matching(_NAME, found.get("name"), "name of a network port")
    return GuestNic(name=name, kind=kind, up=found["up"], **numbers)


def _fields(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise BadReport("no object where one belongs")
    return value


def _list(value: Any, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise BadReport("no list where one belongs, or a longer one")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise BadReport("no text where one belongs")
    return inert(value)[:_LONGEST]


def _matching(pattern: re.Pattern[str], value: Any, what: str) -> str:
    if type(value) is not str or not pattern.fullmatch(value):
        raise BadReport(f"no valid {what}")
    return value


def _figures(value: Any, names: Sequence[str]) -> dict[str, float]:
    """The measured ones; null is not measured."""
    found = {}
    for name in names:
        number = _fields(value).get(name)
        if number is None:
            continue
        if type(number) not in {int, float} or not 0 <= number <= _LARGEST:
            raise BadReport(f"no valid {name}")
        found[name] = float(number)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSide:
    """What the host knows of itself, for the check. Never shown for a slice."""

    boot_id: str
    memory_bytes: float = math.inf
    held_cards: frozenset[str] = frozenset()
    """The UUIDs of the cards that the host's own driver serves now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCards:
    """The cards that the site gave to a slice; empty and None: no expectation."""

    count: int = 0
    uuids: tuple[str, ...] = ()
    memory_bytes: float | None = None
    """Of each card, in the guest."""


@dataclass(frozen=True, slots=True)
class CheckedReport:
    """A report without the numbers that came from the host."""

    report: GuestReport | None
    """None: all of it came from the host."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By the UUID of a card: why its numbers are not shown."""
    faults: tuple[str, ...] = ()
    """What is wrong, for operators."""


def checked(report: GuestReport, host: HostSide, expected: ExpectedCards) -> CheckedReport:
    """Find the numbers that only the host can have measured."""
    if report.boot_id == host.boot_id:
        reason = "the report has the boot id of the host: it is not from the guest"
        return CheckedReport(None, faults=(reason,))
    memory = report.memory_bytes
    if memory is not None and memory >= host.memory_bytes:
        reason = "the report has as much memory as the host: it is not from the guest"
        return CheckedReport(None, faults=(reason,))
    refused: dict[str, str] = {}
    for gpu in report.gpus:
        if reason := _sign_of_host(gpu, host, expected):
            refused[gpu.uuid] = reason
    uuids = [gpu.uuid for gpu in report.gpus]
    refused.update({each: "two cards have this UUID" for each in uuids if uuids.count(each) > 1})
    faults = [f"{uuid}: {reason}" for uuid, reason in refused.items()]
    faults += [f"{gpu.uuid} is lost ({gpu.lost})" for gpu in report.gpus if gpu.lost]
    if report.gpu_reason:
        faults.append(_with_error(report.gpu_reason, report.gpu_error))
    elif expected.count and len(report.gpus) != expected.count:
        faults.append(f"{len(report.gpus)} GPUs in the guest instead of {expected.count}")
    return CheckedReport(report, refused, tuple(faults))


def _sign_of_host(gpu: GuestGpu, host: HostSide, expected: ExpectedCards) -> str:
    if gpu.uuid in host.held_cards:
        return "the driver of the host serves this card, so its numbers are not the guest's"
    if expected.uuids and gpu.uuid not in expected.uuids:
        return "this card was not given to the slice"
    total, used = gpu.figures.get(_MEMORY_TOTAL), gpu.figures.get(_MEMORY_USED)
    wanted = expected.memory_bytes
    if wanted is not None and total is not None and abs(total - wanted) > (
        _MEMORY_TOLERANCE * wanted
    ):  # fmt: skip
        return (
            f"the card has {total / _GIB:.0f} GiB instead of the {wanted / _GIB:.0f} of the slice"
        )
    if total is not None and used is not None and used > total:
        return "more memory is in use than the card has in the guest"
    return ""


def _with_error(reason: str, last_error: str) -> str:
    return f"{reason} ({last_error})" if last_error else reason


def readings_of(reports: Sequence[CheckedReport], time: float) -> SliceReadings:
    """The readings of a job that has all of these guests, read at `time`."""
    readings: list[MetricReading] = []
    for each in reports:
        readings += _of_cards(each, time)
    readings += [_of_guests(metric, reports, time) for metric in OF_THE_GUEST]
    known = {each.metric for each in readings}
    readings += [Absence(each, NOT_IN_GUEST) for each in CATALOGUE if each not in known]
    return SliceReadings(tuple(readings))


def _of_cards(found: CheckedReport, time: float) -> list[MetricReading]:
    report = found.report
    if report is None or not report.gpus:
        reason, error = (
            (found.faults[0], "")
            if report is None
            else (report.gpu_reason or NO_GPU, report.gpu_error)
        )
        return [Absence(each, reason, error) for each in (*OF_A_CARD, _THROTTLED)]
    return [reading for gpu in report.gpus for reading in _of_card(gpu, found, time)]


def _of_card(gpu: GuestGpu, found: CheckedReport, time: float) -> list[MetricReading]:
    labels = labelled(gpu_uuid=gpu.uuid)
    reason = found.refused.get(gpu.uuid) or (CARD_LOST if gpu.lost else "")
    if reason:
        return [Absence(each, reason, gpu.lost, labels) for each in (*OF_A_CARD, _THROTTLED)]
    readings: list[MetricReading] = []
    for metric in OF_A_CARD:
        value = gpu.figures.get(metric)
        if value is None:
            readings.append(Absence(metric, NOT_REPORTED, gpu.failed.get(metric, ""), labels))
            continue
        readings.append(_sample(metric, value, time, **dict(labels)))
    if gpu.throttled is None:
        return [*readings, Absence(_THROTTLED, NOT_REPORTED, "", labels)]
    return readings + [
        _sample(_THROTTLED, float(each in gpu.throttled), time, gpu_uuid=gpu.uuid, reason=each)
        for each in REASONS
    ]


def _of_guests(metric: str, found: Sequence[CheckedReport], time: float) -> MetricReading:
    """The sum over the guests; a part of it would look like the whole."""
    labels = dict(_OF_THE_JOB_ALONE) if "scope" in CATALOGUE[metric].labels else {}
    values = []
    for each in found:
        if each.report is None:
            return Absence(metric, each.faults[0] if len(found) == 1 else ONE_SILENT)
        values.append(each.report.figures.get(metric))
    known = [each for each in values if each is not None]
    if len(known) != len(values) or not known:
        return Absence(metric, NOT_IN_GUEST)
    return _sample(metric, math.fsum(known), time, **labels)


def _sample(metric: str, value: float, time: float, **labels: str) -> MetricReading:
    try:
        return Sample(metric, value, time, Provenance.SLICE_GUEST, labelled(**labels))
    except NotMeasured as error:
        return Absence(metric, f"{NO_NUMBER}: {error}", "", labelled(**labels))
