"""Reads one NVIDIA card: each metric by a separate call, with separate failures.

A metric that NVML does not have for a card is an absence. For a card that fell off the bus, every
metric is an absence. Blanks and impossible values are refused when a `Sample` is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lattice.domain.metric import Absence, MetricReading, NotMeasured, Sample, labelled
from lattice.probes.dcgm_blanks import is_blank
from lattice.probes.nvml import BROKEN, Nvml, NvmlFailed
from lattice.probes.probe import ProbeFailed

LOST = "the card fell off the bus"
MIG_UTILISATION = "MIG is on: the card tells no utilisation"
MIG_MEMORY = "MIG is on: its instances tell their memory"
MIG_INSTANCE = "MIG is on: the card tells it for all its instances together"
NOT_REPORTED = "this card does not tell it"
NO_NUMBER = "the driver told no number"

UTILISATION = "gpu_utilization_percent"
MEMORY_USED, MEMORY_TOTAL = "gpu_memory_used_bytes", "gpu_memory_total_bytes"
THROTTLED = "gpu_throttled"
NVLINK = "gpu_nvlink_bytes_total"
ECC_CORRECTED, ECC_UNCORRECTED = "gpu_ecc_corrected_total", "gpu_ecc_uncorrected_total"

THROTTLE_BITS: Mapping[str, int] = {
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}
"""Of NVML's mask, the reasons that slow a job down."""
_LARGEST_MASK = 2**32
_MEGA = 1e6
_MILLI = 1e-3
_KIB = 1024
_KB = 1000
"""NVML uses KB for PCIe and KiB for NVLink."""
_ALL_LINKS = 0xFFFF_FFFF
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_SM, _MEMORY = 1, 2
_TX, _RX = 0, 1
_NVLINK_TX, _NVLINK_RX = 138, 139
"""Totals over all links since the driver was loaded, in KiB, without protocol overhead."""
_LINK_COUNT, _LINK_SPEED, _LINK_STATE = 91, 164, 165
"""The number of NVLinks; for each its speed in one direction in MB/s, and whether it is up."""
_MOST_LINKS = 36
_UP = 1
_DIRECTIONS = 2
_UNSIGNED_KINDS = {1: "uiVal", 2: "ulVal", 3: "ullVal"}


@dataclass(frozen=True, slots=True)
class _Figure:
    metric: str
    function: str
    arguments: tuple[int, ...] = ()
    factor: float = 1.0


FIGURES = (
    _Figure("gpu_power_watts", "nvmlDeviceGetPowerUsage", (), _MILLI),
    _Figure("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", (), _MILLI),
    _Figure("gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", (), _MILLI),
    _Figure("gpu_temperature_celsius", "nvmlDeviceGetTemperature", (0,)),
    _Figure("gpu_clock_sm_hertz", "nvmlDeviceGetClockInfo", (_SM,), _MEGA),
    _Figure("gpu_clock_memory_hertz", "nvmlDeviceGetClockInfo", (_MEMORY,), _MEGA),
    _Figure(ECC_CORRECTED, "nvmlDeviceGetTotalEccErrors", (_CORRECTED, _VOLATILE)),
    _Figure(ECC_UNCORRECTED, "nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE)),
    _Figure("gpu_pcie_tx_bytes_per_second", "nvmlDeviceGetPcieThroughput", (_TX,), _KB),
    _Figure("gpu_pcie_rx_bytes_per_second", "nvmlDeviceGetPcieThroughput", (_RX,), _KB),
)
"""One call, one number."""

CARD_METRICS = frozenset(
    {UTILISATION, MEMORY_USED, MEMORY_TOTAL, THROTTLED, NVLINK, *(each.metric for each in FIGURES)}
)


class CardLost(Exception):
    """The card does not answer any more; the text is NVML's."""


class CardReader:
    """Reads one card, or one MIG instance of it."""

    def __init__(self, nvml: Nvml, handle: Any, uuid: str, time: Callable[[], float]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._uuid = uuid
        self._time = time

    def all(self, *, instances: int | None) -> list[MetricReading]:
        """Every metric. `instances`: the number of its MIG instances; None: MIG is off.

        Raises `ProbeFailed` if NVML as a whole is gone.
        """
        try:
            readings = [each for figure in FIGURES for each in self._figure(figure)]
            readings += self._utilisation() if instances is None else self._no(UTILISATION)
            readings += self._no_memory() if instances else self.memory()
            readings += [*self.throttled(), *self._nvlink()]
        except CardLost as lost:
            return lost_card(self._uuid, str(lost))
        return readings

    def instance(self) -> list[MetricReading]:
        """The metrics of a MIG instance itself: its memory."""
        try:
            readings = self.memory()
        except CardLost as lost:
            return lost_card(self._uuid, str(lost))
        labels = labelled(gpu_uuid=self._uuid)
        shared = CARD_METRICS - {UTILISATION, MEMORY_USED, MEMORY_TOTAL}
        return [
            *readings,
            Absence(UTILISATION, MIG_UTILISATION, labels=labels),
            *(Absence(each, MIG_INSTANCE, labels=labels) for each in sorted(shared)),
        ]

    def memory(self) -> list[MetricReading]:
        """Memory in use by programs. Drivers before 510 include their own reserved memory."""
        try:
            try:
                info = self._ask("nvmlDeviceGetMemoryInfo", self._nvml.constant("nvmlMemory_v2"))
            except NvmlFailed as failed:
                if not failed.not_supported:
                    raise
                info = self._ask("nvmlDeviceGetMemoryInfo")
        except NvmlFailed as failed:
            return [self._absent(each, failed) for each in (MEMORY_USED, MEMORY_TOTAL)]
        return [
            self._made(MEMORY_USED, getattr(info, "used", None)),
            self._made(MEMORY_TOTAL, getattr(info, "total", None)),
        ]

    def throttled(self) -> list[MetricReading]:
        """One reading a reason: 1 while it holds."""
        try:
            try:
                mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
            except NvmlFailed as failed:
                if not failed.not_supported:
                    raise
                # Drivers before 535 have it only by its old name.
                mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        except NvmlFailed as failed:
            return [self._absent(THROTTLED, failed)]
        if type(mask) is not int or not 0 <= mask < _LARGEST_MASK or is_blank(mask):
            return [Absence(THROTTLED, NO_NUMBER, labels=labelled(gpu_uuid=self._uuid))]
        return [
            self._made(THROTTLED, 1.0 if mask & bit else 0.0, reason=reason)
            for reason, bit in THROTTLE_BITS.items()
        ]

    def figures(self, *metrics: str) -> list[MetricReading]:
        """Only these metrics, of those in `FIGURES`. Raises `CardLost`."""
        wanted = [each for each in FIGURES if each.metric in metrics]
        return [reading for figure in wanted for reading in self._figure(figure)]

    def _figure(self, figure: _Figure) -> list[MetricReading]:
        try:
            value = self._ask(figure.function, *figure.arguments)
        except NvmlFailed as failed:
            return [self._absent(figure.metric, failed)]
        return [self._made(figure.metric, value, figure.factor)]

    def _utilisation(self) -> list[MetricReading]:
        try:
            rates = self._ask("nvmlDeviceGetUtilizationRates")
        except NvmlFailed as failed:
            return [self._absent(UTILISATION, failed)]
        return [self._made(UTILISATION, getattr(rates, "gpu", None))]

    def _nvlink(self) -> list[MetricReading]:
        fields = [(_NVLINK_TX, _ALL_LINKS), (_NVLINK_RX, _ALL_LINKS)]
        try:
            values = list(self._ask("nvmlDeviceGetFieldValues", fields))
        except NvmlFailed as failed:
            return [self._absent(NVLINK, failed)]
        counts = [_unsigned(value) for value in values]
        total = sum(each for each in counts if each is not None)
        if None in counts or len(counts) != len(fields):
            return [Absence(NVLINK, NOT_REPORTED, labels=labelled(gpu_uuid=self._uuid))]
        return [self._made(NVLINK, total, _KIB)]

    def nvlinks(self) -> tuple[int, float] | None:
        """How many are up, and their total bytes/s in both directions; None: not known.

        Raises `CardLost`.
        """
        try:
            (counted,) = self._fields((_LINK_COUNT, 0))
            if counted is None or not 0 < counted <= _MOST_LINKS:
                return None
            links = range(counted)
            states = self._fields(*((_LINK_STATE, each) for each in links))
            speeds = self._fields(*((_LINK_SPEED, each) for each in links))
        except (NvmlFailed, ValueError):
            return None
        up = [speed for state, speed in zip(states, speeds, strict=True) if state == _UP]
        known = [each for each in up if each]
        if None in states or len(known) != len(up):
            # A sum without one link would look like the total.
            return None
        return len(up), float(sum(known)) * _MEGA * _DIRECTIONS

    def _fields(self, *asked: tuple[int, int]) -> list[int | None]:
        """Raises `NvmlFailed`, `CardLost`, and `ValueError` if fields are missing."""
        values = [_unsigned(each) for each in self._ask("nvmlDeviceGetFieldValues", list(asked))]
        if len(values) != len(asked):
            raise ValueError("fewer fields than were asked for")
        return values

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return self._nvml.call(function, self._handle, *arguments)
        except NvmlFailed as failed:
            if failed.ends_session:
                raise ProbeFailed(BROKEN, failed.text) from None
            if failed.lost:
                raise CardLost(failed.text) from None
            raise

    def _made(self, metric: str, value: Any, factor: float = 1.0, **labels: str) -> MetricReading:
        return reading(metric, value, factor, self._time(), gpu_uuid=self._uuid, **labels)

    def _absent(self, metric: str, failed: NvmlFailed) -> Absence:
        reason = NOT_REPORTED if failed.not_supported else "NVML did not answer it"
        return Absence(metric, reason, failed.text, labelled(gpu_uuid=self._uuid))

    def _no(self, metric: str) -> list[MetricReading]:
        return [Absence(metric, MIG_UTILISATION, labels=labelled(gpu_uuid=self._uuid))]

    def _no_memory(self) -> list[MetricReading]:
        # With its instances it would count twice in a total.
        labels = labelled(gpu_uuid=self._uuid)
        return [Absence(each, MIG_MEMORY, labels=labels) for each in (MEMORY_USED, MEMORY_TOTAL)]


def _unsigned(value: Any) -> int | None:
    """The value of a field; None if NVML does not have it."""
    kind = _UNSIGNED_KINDS.get(value.valueType)
    if value.nvmlReturn or kind is None:
        return None
    number = int(getattr(value.value, kind))
    return None if is_blank(number) else number


def reading(metric: str, value: Any, factor: float, time: float, **labels: str) -> MetricReading:
    """A sample, or an absence if the value can't be one."""
    absent = Absence(metric, NO_NUMBER, labels=labelled(gpu_uuid=labels["gpu_uuid"]))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return absent
    try:
        if is_blank(value):
            return absent
        return Sample(metric, float(value) * factor, time, labels=labelled(**labels))
    except (NotMeasured, OverflowError):
        return absent


def lost_card(
    uuid: str, last_error: str, reason: str = LOST, metrics: frozenset[str] = CARD_METRICS
) -> list[MetricReading]:
    """An absence for every metric of a lost card."""
    labels = labelled(gpu_uuid=uuid)
    return [Absence(each, reason, last_error, labels) for each in sorted(metrics)]
