"""Reads one AMD card through amd-smi's library: each metric by a separate call.

A metric that the library does not have for a card is an absence with the library's text. What has
no function of its own is in the firmware's table, which one call returns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from lattice.domain.measured import FIRST_READING
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.probes import amdsmi
from lattice.probes.amd_table import (
    LEAST_SHARE,
    MetricsTable,
    ThrottleMeter,
    read_table,
)
from lattice.probes.amdsmi import AmdSmi, AmdSmiFailed
from lattice.probes.dcgm import LINK_ERRORS
from lattice.probes.nvidia_card import (
    CARD_METRICS,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    LOST,
    MEMORY_TOTAL,
    MEMORY_USED,
    NOT_REPORTED,
    NVLINK,
    THROTTLED,
    UTILISATION,
    lost_card,
    reading,
)
from lattice.probes.nvidia_xids import XIDS
from lattice.probes.probe import ProbeFailed

XGMI = "gpu_xgmi_bytes_total"
AMD_METRICS = (CARD_METRICS - {NVLINK}) | {XIDS, LINK_ERRORS, XGMI}
OTHER_RELEASE = "how this release of amd-smi tells the power is not known"
OTHER_TABLE = "how this release of amd-smi lays out the firmware's table is not known"
NOT_READ = "Lattice does not read it of AMD's cards"

_VRAM, _CURRENT = 0, 0
_EDGE, _HOTSPOT = 0, 1
_GFX_CLOCK, _MEMORY_CLOCK = 0, 4
_MEGA, _MICRO = 1e6, 1e-6
_XGMI_BLOCK = 1 << 7
_MOST_LINKS = 8
_UP = 1
_DIRECTIONS = 2
_BLANKS = frozenset({0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
_POWER_AT: dict[int, tuple[tuple[int, int], ...]] = {
    24: ((0, 4), (4, 4)),
    26: ((0, 8), (8, 4), (12, 4)),
    27: ((0, 8), (8, 4), (12, 4)),
}
"""By release: offset and size of the power of the socket, now or on average, in watts.

Of the other releases it is read from the firmware's table.
"""


class AmdCardLost(Exception):
    """The card does not answer any more; the text is the library's."""


class AmdCardReader:
    """Reads one card: each metric by a separate call, with separate failures."""

    def __init__(
        self,
        library: AmdSmi,
        handle: int,
        uuid: str,
        now: Callable[[], float],
        meter: ThrottleMeter,
    ) -> None:
        self._library = library
        self._handle = handle
        self._uuid = uuid
        self._now = now
        self._meter = meter

    def all(self) -> list[MetricReading]:
        """Every metric. Raises `AmdCardLost`, and `ProbeFailed` if the driver is gone."""
        library, handle = self._library, self._handle
        found = [
            self._made(UTILISATION, lambda: self._word("amdsmi_get_gpu_activity")),
            self._made(MEMORY_USED, lambda: self._memory("amdsmi_get_gpu_memory_usage")),
            self._made(MEMORY_TOTAL, lambda: self._memory("amdsmi_get_gpu_memory_total")),
            self._made("gpu_temperature_celsius", self._temperature),
            self._made("gpu_clock_sm_hertz", lambda: self._clock(_GFX_CLOCK), _MEGA),
            self._made("gpu_clock_memory_hertz", lambda: self._clock(_MEMORY_CLOCK), _MEGA),
            self._made("gpu_power_limit_watts", self._power_limit, _MICRO),
            self._made(
                "gpu_energy_joules_total", lambda: library.energy_microjoules(handle), _MICRO
            ),
            self._power(),
            self._made(LINK_ERRORS, self._replays, link="pcie", kind="replay"),
        ]
        return [*found, *self._link_errors(), *self._of_table(), *self.errors()]

    def errors(self) -> list[MetricReading]:
        """Counts of memory errors."""
        try:
            found = self._library.structure("amdsmi_get_gpu_total_ecc_count", self._handle)
        except AmdSmiFailed as failed:
            return [self._absent(each, failed) for each in (ECC_CORRECTED, ECC_UNCORRECTED)]
        return [
            self._made(ECC_CORRECTED, lambda: _whole(found, 0, 8)),
            self._made(ECC_UNCORRECTED, lambda: _whole(found, 8, 8)),
        ]

    def slowed(self) -> tuple[str, ...]:
        """Why the card is slowed down now, as far as it reports that."""
        try:
            table = self._table()
        except AmdSmiFailed as failed:
            self._absent(THROTTLED, failed)
            return ()
        found = throttled(table, self._meter, self._uuid, self._now()) if table else []
        return tuple(
            each.label("reason") for each in found if not isinstance(each, Absence) and each.value
        )

    def xgmi_links(self) -> tuple[int, float | None] | None:
        """How many XGMI links are up, and what they carry in both directions; None: not known."""
        try:
            links = self._library.structure("amdsmi_get_gpu_xgmi_link_status", self._handle)
            table = self._table()
        except AmdSmiFailed as failed:
            self._absent(XGMI, failed)
            return None
        count = _whole(links, 0, 4)
        if not count or count > _MOST_LINKS:
            return None
        up = sum(_whole(links, 4 + 4 * each, 4) == _UP for each in range(int(count)))
        one = table.xgmi_link_bytes_s if table else None
        return up, None if one is None else up * one * _DIRECTIONS

    def _of_table(self) -> list[MetricReading]:
        """Throttling and the traffic of XGMI."""
        try:
            table = self._table()
        except AmdSmiFailed as failed:
            return [self._absent(each, failed) for each in (THROTTLED, XGMI)]
        if table is None:
            return [Absence(each, OTHER_TABLE, labels=self._labels) for each in (THROTTLED, XGMI)]
        return [
            *throttled(table, self._meter, self._uuid, self._now()),
            moved(table.xgmi_bytes, self._uuid, self._now()),
        ]

    def _table(self) -> MetricsTable | None:
        raw = self._library.structure("amdsmi_get_gpu_metrics_info", self._handle)
        return read_table(raw, self._library.release())

    def _power(self) -> MetricReading:
        try:
            fields = _POWER_AT.get(self._library.release())
            table = self._table() if fields is None else None
        except AmdSmiFailed as failed:
            return self._absent("gpu_power_watts", failed)
        if table is not None:
            return self._made("gpu_power_watts", lambda: table.watts)
        if fields is None:
            return Absence("gpu_power_watts", OTHER_RELEASE, labels=self._labels)

        def watts() -> float | None:
            found = self._library.structure("amdsmi_get_power_info", self._handle)
            values = (_whole(found, *field) for field in fields)
            # A card reports one of them; the others are zero or a blank.
            return next((each for each in values if each), None)

        return self._made("gpu_power_watts", watts)

    def _replays(self) -> float | None:
        """How often something was sent again over PCIe."""
        count = self._library.number("amdsmi_get_gpu_pci_replay_counter", self._handle)
        return None if count in _BLANKS else count

    def _link_errors(self) -> list[MetricReading]:
        """Of XGMI. Its error status is not read: reading it clears it for everybody else."""
        try:
            found = self._library.block_errors(self._handle, _XGMI_BLOCK)
        except AmdSmiFailed as failed:
            return [self._absent(LINK_ERRORS, failed, link="xgmi")]
        return [
            self._made(LINK_ERRORS, lambda: _whole(found, 0, 8), link="xgmi", kind="corrected"),
            self._made(LINK_ERRORS, lambda: _whole(found, 8, 8), link="xgmi", kind="uncorrected"),
        ]

    def _power_limit(self) -> float | None:
        found = self._library.structure("amdsmi_get_power_cap_info", self._handle, 0)
        return _whole(found, 0, 8)

    def _word(self, function: str) -> float | None:
        return _whole(self._library.structure(function, self._handle), 0, 4)

    def _memory(self, function: str) -> float:
        return self._library.number(function, self._handle, _VRAM)

    def _clock(self, which: int) -> float | None:
        found = self._library.structure("amdsmi_get_clock_info", self._handle, which)
        return _whole(found, 0, 4)

    def _temperature(self) -> float:
        """Of the hottest point; older cards have only the edge."""
        try:
            return self._sensor(_HOTSPOT)
        except AmdSmiFailed as failed:
            if not failed.not_supported:
                raise
            return self._sensor(_EDGE)

    def _sensor(self, sensor: int) -> float:
        return self._library.number(
            "amdsmi_get_temp_metric", self._handle, sensor, _CURRENT, kind=ctypes.c_int64
        )

    @property
    def _labels(self) -> Any:
        return labelled(gpu_uuid=self._uuid)

    def _made(
        self, metric: str, read: Callable[[], float | None], factor: float = 1.0, **labels: str
    ) -> MetricReading:
        try:
            value = read()
        except AmdSmiFailed as failed:
            return self._absent(metric, failed)
        return reading(metric, value, factor, self._now(), gpu_uuid=self._uuid, **labels)

    def _absent(self, metric: str, failed: AmdSmiFailed, **labels: str) -> Absence:
        if failed.ends_session:
            raise ProbeFailed(amdsmi.BROKEN, failed.text) from None
        if failed.lost:
            raise AmdCardLost(failed.text) from None
        reason = NOT_REPORTED if failed.not_supported else "amd-smi did not answer it"
        return Absence(metric, reason, failed.text, labelled(gpu_uuid=self._uuid, **labels))


def throttled(
    table: MetricsTable, meter: ThrottleMeter, uuid: str, time: float
) -> list[MetricReading]:
    """One reading a cause that the card reports: 1 while it holds."""
    labels = labelled(gpu_uuid=uuid)
    if table.residency is not None:
        shares = meter.shares(uuid, table.residency)
        if shares is None:
            return [Absence(THROTTLED, FIRST_READING, labels=labels)]
        held = {cause: share >= LEAST_SHARE for cause, share in shares.items()}
    else:
        held = dict(table.active or {})
    if not held:
        return [Absence(THROTTLED, NOT_REPORTED, labels=labels)]
    return [
        reading(THROTTLED, float(holds), 1.0, time, gpu_uuid=uuid, reason=cause)
        for cause, holds in held.items()
    ]


def moved(count: float | None, uuid: str, time: float) -> MetricReading:
    """The traffic of XGMI."""
    if count is None:
        return Absence(XGMI, NOT_REPORTED, labels=labelled(gpu_uuid=uuid))
    return reading(XGMI, count, 1.0, time, gpu_uuid=uuid)


def lost_amd_card(uuid: str, text: str) -> list[MetricReading]:
    """An absence for every metric of a lost card."""
    return lost_card(uuid, text, LOST, AMD_METRICS)


def _whole(structure: bytes, offset: int, size: int) -> float | None:
    """A number in a structure; None for a blank."""
    value = int.from_bytes(structure[offset : offset + size], "little")
    return None if value in _BLANKS else value
