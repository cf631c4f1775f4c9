"""The AMD probe: metrics of each job's cards, by amd-smi's library or else its command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lattice.base.clock import Clock
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.probes import amdsmi
from lattice.probes.amd_card import (
    AMD_METRICS,
    NOT_READ,
    AmdCardLost,
    AmdCardReader,
    lost_amd_card,
)
from lattice.probes.amd_cards import AmdCard, AmdChosen, chosen, met, with_lost
from lattice.probes.amd_command import AmdCommandDriver
from lattice.probes.amd_table import ThrottleMeter
from lattice.probes.amdsmi import AmdSmi, AmdSmiFailed
from lattice.probes.card_probe import HELD_S, CardProbe
from lattice.probes.gpuhealth import CardCondition
from lattice.probes.nvidia_card import ECC_CORRECTED, ECC_UNCORRECTED
from lattice.probes.probe import ProbeFailed

_MARKET_NAME = "amdsmi_get_gpu_asic_info"
_COMPUTE, _MEMORY = "amdsmi_get_gpu_compute_partition", "amdsmi_get_gpu_memory_partition"


class AmdDriver:
    """The port `CardDriver` on amd-smi."""

    metrics = AMD_METRICS
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
        # Each sees the time since its own last reading.
        self._of_jobs, self._of_node = ThrottleMeter(), ThrottleMeter()

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
        return with_lost(
            [self._card(each) for each in handles],
            [card for handle, card in self._known.items() if handle not in handles],
        )

    def choose(self, index: int, cards: Sequence[AmdCard]) -> AmdChosen:
        """The card of one of Slurm's numbers."""
        return chosen(index, self._devices, cards)

    def read(self, device: AmdCard) -> list[MetricReading]:
        """Every metric of a card. Raises `ProbeFailed`."""
        if device.lost:
            return lost_amd_card(device.uuid, device.lost)
        try:
            readings = self._reader(device, self._of_jobs).all()
        except AmdCardLost as lost:
            return lost_amd_card(device.uuid, str(lost))
        labels = labelled(gpu_uuid=device.uuid)
        known = {each.metric for each in readings}
        missing = sorted(self.metrics - known)
        return readings + [Absence(each, NOT_READ, labels=labels) for each in missing]

    def condition(self, card: AmdCard) -> CardCondition:
        """The condition of a card. Raises `ProbeFailed`."""
        if card.lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=card.lost)
        reader = self._reader(card, self._of_node)
        try:
            readings, slowed, links = reader.errors(), reader.slowed(), reader.xgmi_links()
        except AmdCardLost as lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=str(lost))
        counts = {
            each.metric: int(each.value) for each in readings if not isinstance(each, Absence)
        }
        return CardCondition(
            uuid=card.uuid,
            name=card.name,
            ecc_corrected=counts.get(ECC_CORRECTED),
            ecc_uncorrected=counts.get(ECC_UNCORRECTED),
            throttled=slowed,
            nvlinks=links[0] if links else None,
            nvlink_bytes_s=links[1] if links else None,
        )

    def stop(self) -> None:
        """Shut the library down."""
        self._library.stop()

    def _reader(self, card: AmdCard, meter: ThrottleMeter) -> AmdCardReader:
        return AmdCardReader(
            self._library, card.handle, card.uuid, lambda: self._clock.now().timestamp(), meter
        )

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
        market = self._or_nothing(lambda: self._library.structure(_MARKET_NAME, handle))
        return met(
            handle,
            self._library.text("amdsmi_get_gpu_device_uuid", handle),
            market.partition(b"\0")[0].decode("utf-8", "replace"),
            compute=self._partition(_COMPUTE, handle),
            memory=self._partition(_MEMORY, handle),
            address=self._or_nothing(lambda: self._address(handle).encode()).decode(),
            pci=self._pci,
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

    def _address(self, handle: int) -> str:
        """Its PCI address: function, device, bus and domain in the bits of a number."""
        bits = self._library.number("amdsmi_get_gpu_device_bdf", handle)
        function, device, bus, domain = bits & 7, bits >> 3 & 31, bits >> 8 & 255, bits >> 16
        return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


class AmdDrivers:
    """The port `CardDriver`: the library, and where that can't be loaded the command."""

    metrics = AMD_METRICS
    nothing = AmdDriver.nothing
    broken = AmdDriver.broken
    hangs = AmdDriver.hangs

    def __init__(self, library: AmdDriver, command: AmdCommandDriver) -> None:
        self._library = library
        self._command = command
        self._serving: AmdDriver | AmdCommandDriver = library

    def scan(self) -> tuple[AmdCard, ...]:
        """All cards, lost ones included. Raises `ProbeFailed`."""
        self._serving = self._library
        try:
            return self._library.scan()
        except ProbeFailed as failed:
            if failed.reason != amdsmi.NOT_INSTALLED:
                raise
            return self._by_command(failed)

    def _by_command(self, failed: ProbeFailed) -> tuple[AmdCard, ...]:
        self._serving = self._command
        try:
            return self._command.scan()
        except ProbeFailed as other:
            # The library's reason says what to install.
            raise (failed if other.reason == amdsmi.NOT_INSTALLED else other) from None

    def choose(self, index: int, cards: Sequence[AmdCard]) -> AmdChosen:
        """The card of one of Slurm's numbers."""
        return self._serving.choose(index, cards)

    def read(self, device: AmdCard) -> list[MetricReading]:
        """Every metric of a card. Raises `ProbeFailed`."""
        return self._serving.read(device)

    def condition(self, card: AmdCard) -> CardCondition:
        """The condition of a card. Raises `ProbeFailed`."""
        return self._serving.condition(card)

    def stop(self) -> None:
        """Shut the library down."""
        self._library.stop()


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
        command: AmdCommandDriver | None = None,
        sys: Path = Path("/sys"),
        held_s: float = HELD_S,
    ) -> None:
        """`gpus_of`, `held_s`: as of `CardProbe`. `devices`: as of `chosen`."""
        drivers = AmdDrivers(
            AmdDriver(library or AmdSmi(clock), clock, devices, sys),
            command or AmdCommandDriver(clock, devices, sys=sys),
        )
        super().__init__("amd", drivers, gpus_of, clock, held_s=held_s)
