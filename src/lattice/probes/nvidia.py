"""The NVIDIA probe: metrics of each job's cards, read through NVML.

The servers send which cards a job has, from Slurm's GRES detail. The device list of a control group
has no information on cgroup v2 and is not used. A card is read once, even if several jobs share it.
A job without GPUs costs nothing.

`chosen` maps a GRES index to its device file and the card's UUID. Slurm numbers the devices of a
node in the order of its `gres.conf`. With `File=/dev/nvidia[0-7]` the index is the number in the
file's name, which is NVML's *minor number*, not its index. A site with another order in
`gres.conf`, or with MIG instances, configures that in the agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.domain.metric import Absence, MetricReading
from lattice.probes.card_probe import HELD_S, CardProbe
from lattice.probes.gpuhealth import CardCondition
from lattice.probes.nvidia_card import (
    CARD_METRICS,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    LOST,
    CardLost,
)
from lattice.probes.nvidia_cards import Card, Instance, NvidiaCards
from lattice.probes.nvidia_xids import XIDS, XidCounter
from lattice.probes.nvml import AMD_CARDS, BROKEN, NO_CARDS, NO_DRIVER, NOT_INSTALLED, Nvml

NO_SUCH_CARD = "Slurm gave the job a card that NVML does not know"
NOT_LISTED = "Slurm gave the job a device that `gpus.devices` does not name"
MIG_NOT_LISTED = "MIG is on: `gpus.devices` must say which instance each of Slurm's numbers is"

_FILE = re.compile(r"/(?:[^/]+/)*nvidia(\d{1,4})", re.ASCII)

Chosen: TypeAlias = Card | Instance | str
"""A card, an instance, or why it is neither."""


def chosen(index: int, devices: Sequence[str], cards: Sequence[Card]) -> Chosen:
    """The device of one of Slurm's numbers.

    `devices` names each by file (`/dev/nvidia3`) or by UUID; empty: the number is the file's.
    """
    if not devices:
        if any(card.mig for card in cards):
            # The number may mean an instance: values of another job must not be shown for it.
            return MIG_NOT_LISTED
        return _by_minor(index, cards)
    if index >= len(devices):
        return NOT_LISTED
    name = devices[index]
    if file := _FILE.fullmatch(name):
        return _by_minor(int(file[1]), cards)
    return _by_uuid(name, cards)


def _by_minor(minor: int, cards: Sequence[Card]) -> Chosen:
    return next((card for card in cards if card.uuid and card.minor == minor), NO_SUCH_CARD)


def _by_uuid(uuid: str, cards: Sequence[Card]) -> Chosen:
    for card in cards:
        if card.uuid and card.uuid == uuid:
            return card
        for instance in card.instances:
            if instance.uuid == uuid:
                return instance
    return NO_SUCH_CARD


_HANGS = "NVML has not answered for a while"


class NvidiaDriver:
    """The port `CardDriver` on NVML."""

    metrics = CARD_METRICS | {XIDS}
    nothing = frozenset({NOT_INSTALLED, NO_DRIVER, NO_CARDS, AMD_CARDS})
    broken = BROKEN
    hangs = _HANGS

    def __init__(self, nvml: Nvml, clock: Clock, devices: Sequence[str] = ()) -> None:
        """`devices`: that of each of Slurm's numbers, if it is not the one of `/dev/nvidiaN`."""
        self.cards = NvidiaCards(nvml, clock)
        self._xids = XidCounter(nvml)
        self._clock = clock
        self._devices = tuple(devices)

    def scan(self) -> tuple[Card, ...]:
        """All cards, lost ones included; counts their events. Raises `ProbeFailed`."""
        cards = self.cards.scan()
        self._xids.take(cards)
        return cards

    def choose(self, index: int, cards: Sequence[Card]) -> Chosen:
        """The device of one of Slurm's numbers."""
        return chosen(index, self._devices, cards)

    def read(self, device: Chosen) -> list[MetricReading]:
        """Every metric of a device. Raises `ProbeFailed`."""
        if isinstance(device, Instance):
            return self.cards.read_part(device)
        assert isinstance(device, Card)
        readings = self.cards.read(device)
        return readings + self._xids.readings(device, self._clock.now().timestamp())

    def stop(self) -> None:
        """Shut NVML down."""
        self.cards.nvml.stop()

    def condition(self, card: Card) -> CardCondition:
        """The condition of a card. Raises `ProbeFailed`."""
        if card.lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=card.lost or LOST)
        reader = self.cards.reader(card)
        try:
            counts = {
                each.metric: int(each.value)
                for each in reader.figures(ECC_CORRECTED, ECC_UNCORRECTED)
                if not isinstance(each, Absence)
            }
            throttled = tuple(
                each.label("reason")
                for each in reader.throttled()
                if not isinstance(each, Absence) and each.value
            )
            nvlinks = reader.nvlinks()
        except CardLost as lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=str(lost))
        return CardCondition(
            uuid=card.uuid,
            name=card.name,
            ecc_corrected=counts.get(ECC_CORRECTED),
            ecc_uncorrected=counts.get(ECC_UNCORRECTED),
            throttled=throttled,
            xids=self._xids.of(card.uuid),
            nvlinks=nvlinks[0] if nvlinks else None,
            nvlink_bytes_s=nvlinks[1] if nvlinks else None,
        )


class NvidiaProbe(CardProbe):
    """The probe of NVIDIA's cards."""

    metrics = NvidiaDriver.metrics

    def __init__(
        self,
        gpus_of: Callable[[int], tuple[int, ...] | None],
        clock: Clock,
        *,
        devices: Sequence[str] = (),
        nvml: Nvml | None = None,
        held_s: float = HELD_S,
    ) -> None:
        """`gpus_of`, `held_s`: as of `CardProbe`. `devices`: as of `NvidiaDriver`."""
        driver = NvidiaDriver(nvml or Nvml(clock), clock, devices)
        super().__init__("nvidia", driver, gpus_of, clock, held_s=held_s)
