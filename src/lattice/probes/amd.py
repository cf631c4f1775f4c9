"""The AMD probe: metrics of each job's cards, read through amd-smi's library.

Slurm numbers the devices of a node in the order of its `gres.conf`. With
`File=/dev/dri/renderD[128-135]` the index is the rank of the render device. A card's render device
is found by its PCI address. A card in several partitions (CPX, DPX, QPX) has several devices for
one address. The site must then name the device of each of Slurm's numbers by UUID.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from lattice.base.clock import Clock
from lattice.base.text import inert
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.probes import amdsmi
from lattice.probes.amdsmi import AmdSmi, AmdSmiFailed
from lattice.probes.card_probe import HELD_S, CardProbe
from lattice.probes.dcgm import LINK_ERRORS
from lattice.probes.gpuhealth import CardCondition
from lattice.probes.kernel_files import names_in
from lattice.probes.nvidia import NOT_LISTED
from lattice.probes.nvidia_card import (
    CARD_METRICS,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    LOST,
    MEMORY_TOTAL,
    MEMORY_USED,
    NOT_REPORTED,
    UTILISATION,
    lost_card,
    reading,
)
from lattice.probes.nvidia_xids import XIDS
from lattice.probes.probe import ProbeFailed

NO_SUCH_CARD = "Slurm gave the job a card that amd-smi does not know"
PARTITIONED = "a card is in partitions: `gpus.devices` must say which each of Slurm's numbers is"
OTHER_RELEASE = "how this release of amd-smi tells the power is not known"
NOT_READ = "Lattice does not read it of AMD's cards"
TWICE = "two cards of this node have the same UUID"

_FILE = re.compile(r"/dev/dri/renderD(\d{1,4})", re.ASCII)
_MARKET_NAME = "amdsmi_get_gpu_asic_info"
_COMPUTE, _MEMORY = "amdsmi_get_gpu_compute_partition", "amdsmi_get_gpu_memory_partition"
_WHOLE = frozenset({"", "SPX", "N/A"})
_LONGEST_NAME = 100
_VRAM, _CURRENT = 0, 0
_EDGE, _HOTSPOT = 0, 1
_GFX_CLOCK, _MEMORY_CLOCK = 0, 4
_MEGA, _MICRO = 1e6, 1e-6
_BLANKS = frozenset({0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
_POWER_AT: Mapping[int, tuple[tuple[int, int], ...]] = {
    24: ((0, 4), (4, 4)),
    26: ((0, 8), (8, 4), (12, 4)),
    27: ((0, 8), (8, 4), (12, 4)),
}
"""By release: offset and size of the power of the socket, now or on average, in watts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdCard:
    """One card, or one partition of a card, at this reading."""

    handle: int
    uuid: str
    name: str = ""
    render: int | None = None
    """Of its render device, `/dev/dri/renderD128`; None if unknown or shared by partitions."""
    partitioned: bool = False
    lost: str = ""


AmdChosen: TypeAlias = AmdCard | str


def chosen(index: int, devices: Sequence[str], cards: Sequence[AmdCard]) -> AmdChosen:
    """The card of one of Slurm's numbers, or why there is none.

    `devices` names each by file (`/dev/dri/renderD128`) or by UUID.
    """
    if devices and index >= len(devices):
        return NOT_LISTED
    if devices:
        file = _FILE.fullmatch(devices[index])
        if not file:
            return next((each for each in cards if each.uuid == devices[index]), NO_SUCH_CARD)
        render = int(file[1])
        return next((each for each in cards if each.render == render), NO_SUCH_CARD)
    if any(each.partitioned for each in cards):
        # The number may mean a partition: values of another job must not be shown for it.
        return PARTITIONED
    ranked = sorted((each for each in cards if each.render is not None), key=_render)
    if len(ranked) != len(cards) or index >= len(ranked):
        return NO_SUCH_CARD
    return ranked[index]


def _render(card: AmdCard) -> int:
    return -1 if card.render is None else card.render


class AmdDriver:
    """The port `CardDriver` on amd-smi."""

    metrics = CARD_METRICS | {XIDS, LINK_ERRORS}
    nothing = frozenset({amdsmi.NOT_INSTALLED, amdsmi.NO_DRIVER, amdsmi.NO_CARDS})
    broken = amdsmi.BROKEN
    hangs = "amd-smi has not answered for a while"

    def __init__(
        self,
        library: AmdSmi,
        clock: Clock,
        devices: Sequence[str] = (),
        sys: Path = Path("/sys"),
    ) -> None:
        self._library = library
        self._clock = clock
        self._devices = tuple(devices)
        self._pci = f"{sys}/bus/pci/devices"
        self._known: dict[int, AmdCard] = {}
        self._session = 0

    def scan(self) -> tuple[AmdCard, ...]:
        """All cards, lost ones included. Raises `ProbeFailed`."""
        self._library.start()
        if self._session != self._library.session:
            self._session = self._library.session
            self._known = {}
        try:
            handles = self._library.handles()
        except AmdSmiFailed as failed:
            raise ProbeFailed(amdsmi.BROKEN, failed.text) from None
        if not handles:
            raise ProbeFailed(amdsmi.NO_CARDS)
        cards = [self._card(each) for each in handles]
        # A card that is no longer listed is lost, not gone: its job must know.
        cards += [
            replace(card, lost="it is not listed any more")
            for handle, card in self._known.items()
            if handle not in handles
        ]
        count = Counter(each.uuid for each in cards)
        if any(uuid and many > 1 for uuid, many in count.items()):
            raise ProbeFailed(TWICE)
        return tuple(cards)

    def choose(self, index: int, cards: Sequence[AmdCard]) -> AmdChosen:
        """The card of one of Slurm's numbers."""
        return chosen(index, self._devices, cards)

    def read(self, device: AmdCard) -> list[MetricReading]:
        """Every metric of a card. Raises `ProbeFailed`."""
        if device.lost:
            return self._lost(device.uuid, device.lost)
        try:
            readings = AmdCardReader(self._library, device, self._now).all()
        except _CardLost as lost:
            return self._lost(device.uuid, str(lost))
        labels = labelled(gpu_uuid=device.uuid)
        known = {each.metric for each in readings}
        missing = sorted(self.metrics - known)
        return readings + [Absence(each, NOT_READ, labels=labels) for each in missing]

    def condition(self, card: AmdCard) -> CardCondition:
        """The condition of a card. Raises `ProbeFailed`."""
        if card.lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=card.lost)
        try:
            readings = AmdCardReader(self._library, card, self._now).errors()
        except _CardLost as lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=str(lost))
        counts = {
            each.metric: int(each.value) for each in readings if not isinstance(each, Absence)
        }
        return CardCondition(
            uuid=card.uuid,
            name=card.name,
            ecc_corrected=counts.get(ECC_CORRECTED),
            ecc_uncorrected=counts.get(ECC_UNCORRECTED),
        )

    def stop(self) -> None:
        """Shut the library down."""
        self._library.stop()

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _lost(self, uuid: str, text: str) -> list[MetricReading]:
        labels = labelled(gpu_uuid=uuid)
        return [
            *lost_card(uuid, text),
            *(Absence(each, LOST, text, labels) for each in (LINK_ERRORS, XIDS)),
        ]

    def _card(self, handle: int) -> AmdCard:
        known = self._known.get(handle)
        if known is not None:
            return known
        try:
            card = self._known[handle] = self._met(handle)
        except AmdSmiFailed as failed:
            if failed.ends_session:
                raise ProbeFailed(amdsmi.BROKEN, failed.text) from None
            return AmdCard(handle=handle, uuid="", lost=failed.text)
        return card

    def _met(self, handle: int) -> AmdCard:
        uuid = self._library.text("amdsmi_get_gpu_device_uuid", handle)
        compute, memory = self._partition(_COMPUTE, handle), self._partition(_MEMORY, handle)
        market = self._or_nothing(lambda: self._library.structure(_MARKET_NAME, handle))
        name = market.partition(b"\0")[0].decode("utf-8", "replace")
        partitioned = compute not in _WHOLE
        modes = ", ".join(each for each in (compute, memory) if each) if partitioned else ""
        return AmdCard(
            handle=handle,
            uuid=inert(uuid)[:_LONGEST_NAME],
            name=inert(f"{name} ({modes})" if modes else name)[:_LONGEST_NAME],
            render=None if partitioned else self._render_of(handle),
            partitioned=partitioned,
        )

    def _partition(self, function: str, handle: int) -> str:
        found = self._or_nothing(lambda: self._library.text(function, handle).encode())
        return found.decode()

    def _or_nothing(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except AmdSmiFailed as failed:
            if failed.ends_session or failed.lost:
                raise
            return b""

    def _render_of(self, handle: int) -> int | None:
        """By the PCI address: function, device, bus and domain in the bits of a number."""
        try:
            bits = self._library.number("amdsmi_get_gpu_device_bdf", handle)
        except AmdSmiFailed as failed:
            if failed.ends_session or failed.lost:
                raise
            return None
        function, device, bus, domain = bits & 7, bits >> 3 & 31, bits >> 8 & 255, bits >> 16
        folder = f"{self._pci}/{domain:04x}:{bus:02x}:{device:02x}.{function}/drm"
        renders = [each.removeprefix("renderD") for each in names_in(folder) if "renderD" in each]
        return int(renders[0]) if len(renders) == 1 and renders[0].isdigit() else None


class _CardLost(Exception):
    """The card does not answer any more; the text is the library's."""


class AmdCardReader:
    """Reads one card: each metric by a separate call, with separate failures."""

    def __init__(self, library: AmdSmi, card: AmdCard, now: Callable[[], float]) -> None:
        self._library = library
        self._card = card
        self._now = now

    def all(self) -> list[MetricReading]:
        """Every metric. Raises `_CardLost`, and `ProbeFailed` if the driver is gone."""
        library, handle = self._library, self._card.handle
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
        return found + self.errors()

    def errors(self) -> list[MetricReading]:
        """Counts of memory errors."""
        try:
            found = self._library.structure("amdsmi_get_gpu_total_ecc_count", self._card.handle)
        except AmdSmiFailed as failed:
            return [self._absent(each, failed) for each in (ECC_CORRECTED, ECC_UNCORRECTED)]
        return [
            self._made(ECC_CORRECTED, lambda: _whole(found, 0, 8)),
            self._made(ECC_UNCORRECTED, lambda: _whole(found, 8, 8)),
        ]

    def _power(self) -> MetricReading:
        try:
            fields = _POWER_AT.get(self._library.release())
        except AmdSmiFailed as failed:
            return self._absent("gpu_power_watts", failed)
        if fields is None:
            return Absence("gpu_power_watts", OTHER_RELEASE, labels=self._labels)

        def watts() -> float | None:
            found = self._library.structure("amdsmi_get_power_info", self._card.handle)
            values = (_whole(found, *field) for field in fields)
            # A card reports one of them; the others are zero or a blank.
            return next((each for each in values if each), None)

        return self._made("gpu_power_watts", watts)

    def _replays(self) -> float | None:
        """How often something was sent again over PCIe."""
        count = self._library.number("amdsmi_get_gpu_pci_replay_counter", self._card.handle)
        return None if count in _BLANKS else count

    def _power_limit(self) -> float | None:
        found = self._library.structure("amdsmi_get_power_cap_info", self._card.handle, 0)
        return _whole(found, 0, 8)

    def _word(self, function: str) -> float | None:
        return _whole(self._library.structure(function, self._card.handle), 0, 4)

    def _memory(self, function: str) -> float:
        return self._library.number(function, self._card.handle, _VRAM)

    def _clock(self, which: int) -> float | None:
        found = self._library.structure("amdsmi_get_clock_info", self._card.handle, which)
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
            "amdsmi_get_temp_metric", self._card.handle, sensor, _CURRENT, kind=ctypes.c_int64
        )

    @property
    def _labels(self) -> Any:
        return labelled(gpu_uuid=self._card.uuid)

    def _made(
        self, metric: str, read: Callable[[], float | None], factor: float = 1.0, **labels: str
    ) -> MetricReading:
        try:
            value = read()
        except AmdSmiFailed as failed:
            return self._absent(metric, failed)
        return reading(metric, value, factor, self._now(), gpu_uuid=self._card.uuid, **labels)

    def _absent(self, metric: str, failed: AmdSmiFailed) -> Absence:
        if failed.ends_session:
            raise ProbeFailed(amdsmi.BROKEN, failed.text) from None
        if failed.lost:
            raise _CardLost(failed.text) from None
        reason = NOT_REPORTED if failed.not_supported else "amd-smi did not answer it"
        return Absence(metric, reason, failed.text, self._labels)


def _whole(structure: bytes, offset: int, size: int) -> float | None:
    """A number in a structure; None for a blank."""
    value = int.from_bytes(structure[offset : offset + size], "little")
    return None if value in _BLANKS else value


class AmdProbe(CardProbe):
    """The probe of AMD's cards."""

    metrics = AmdDriver.metrics

    def __init__(
        self,
        gpus_of: Callable[[int], tuple[int, ...] | None],
        clock: Clock,
        *,
        devices: Sequence[str] = (),
        library: AmdSmi | None = None,
        sys: Path = Path("/sys"),
        held_s: float = HELD_S,
    ) -> None:
        """`gpus_of`, `held_s`: as of `CardProbe`. `devices`: as of `chosen`."""
        driver = AmdDriver(library or AmdSmi(clock), clock, devices, sys)
        super().__init__("amd", driver, gpus_of, clock, held_s=held_s)
