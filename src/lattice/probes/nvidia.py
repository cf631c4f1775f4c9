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
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.domain.metric import Absence, MetricReading
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.gpuhealth import CardCondition, GpuReading
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
from lattice.probes.probe import Found, ProbeFailed

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


NO_GPUS = "the job has no GPUs"
NOT_KNOWN_YET = "which GPUs Slurm gave the job is not known yet"
_HELD_S = 10.0
_HANGS = "NVML has not answered for a while"


class NvidiaProbe:
    """`read` is for the jobs, `condition` for the node; both are thread-safe."""

    name = "nvidia"
    metrics = CARD_METRICS | {XIDS}

    def __init__(
        self,
        gpus_of: Callable[[int], tuple[int, ...] | None],
        clock: Clock,
        *,
        devices: Sequence[str] = (),
        nvml: Nvml | None = None,
        held_s: float = _HELD_S,
    ) -> None:
        """`gpus_of`: a job's GPUs by Slurm's numbers; None: the servers have not sent them yet.

        `held_s`: how long `condition` waits for a `read` that is under way. `devices`: the device
        of each of Slurm's numbers, if that is not the number of `/dev/nvidiaN`.
        """
        self._gpus_of = gpus_of
        self._clock = clock
        self._devices = tuple(devices)
        self._held_s = held_s
        nvml = nvml or Nvml(clock)
        self._cards = NvidiaCards(nvml, clock)
        self._xids = XidCounter(nvml)
        self._one_at_a_time = threading.Lock()
        self._seen: tuple[Card, ...] = ()

    def read(self, jobs: Sequence[NodeJob]) -> Found:
        """The readings of each job's cards."""
        found: dict[JobIdentity, Sequence[MetricReading]] = {}
        asked: dict[JobIdentity, tuple[int, ...] | None] = {}
        for job in jobs:
            indices = self._gpus_of(job.id)
            if indices is not None and not indices:
                found[job.identity] = self._nothing(NO_GPUS)
            else:
                asked[job.identity] = indices
        if not asked:
            return found
        try:
            with self._one_at_a_time:
                cards = self._scan()
                taken: dict[str, list[MetricReading]] = {}
                for identity, indices in asked.items():
                    found[identity] = (
                        self._nothing(NOT_KNOWN_YET)
                        if indices is None
                        else self._of(indices, cards, taken)
                    )
        except ProbeFailed as failed:
            for identity in asked:
                found[identity] = self._nothing(failed.reason, failed.last_error)
        return found

    def uuids_of(self, job_id: int) -> tuple[str, ...] | None:
        """The UUIDs of a job's cards at the last reading, for other probes; returns at once."""
        indices = self._gpus_of(job_id)
        if indices is not None and not indices:
            return ()
        if indices is None or not self._seen:
            return None
        devices = (chosen(index, self._devices, self._seen) for index in indices)
        return tuple(each.uuid for each in devices if not isinstance(each, str)) or None

    def condition(self) -> GpuReading:
        """The condition of all cards, used or not. Blocks; never raises."""
        time = self._clock.now().timestamp()
        if not self._one_at_a_time.acquire(timeout=self._held_s):
            return GpuReading(time=time, failure=_HANGS)
        try:
            cards = self._scan()
            return GpuReading(time=time, cards=tuple(self._condition(card) for card in cards))
        except ProbeFailed as failed:
            if failed.reason in (NOT_INSTALLED, NO_DRIVER, NO_CARDS, AMD_CARDS):
                return GpuReading(time=time, nothing=failed.reason)
            return GpuReading(time=time, failure=failed.last_error or BROKEN)
        finally:
            self._one_at_a_time.release()

    def close(self) -> None:
        """Shut NVML down."""
        self._cards.nvml.stop()

    def _scan(self) -> tuple[Card, ...]:
        cards = self._cards.scan()
        self._xids.take(cards)
        self._seen = cards
        return cards

    def _of(
        self,
        indices: tuple[int, ...],
        cards: tuple[Card, ...],
        taken: dict[str, list[MetricReading]],
    ) -> list[MetricReading]:
        readings: list[MetricReading] = []
        for index in dict.fromkeys(indices):
            device = chosen(index, self._devices, cards)
            if isinstance(device, str):
                readings += self._nothing(device)
                continue
            if device.uuid not in taken:
                taken[device.uuid] = self._taken(device)
            readings += taken[device.uuid]
        return readings

    def _taken(self, device: Chosen) -> list[MetricReading]:
        if isinstance(device, Instance):
            return self._cards.read_part(device)
        assert isinstance(device, Card)
        readings = self._cards.read(device)
        return readings + self._xids.readings(device, self._clock.now().timestamp())

    def _nothing(self, reason: str, last_error: str = "") -> list[MetricReading]:
        return [Absence(each, reason, last_error) for each in sorted(self.metrics)]

    def _condition(self, card: Card) -> CardCondition:
        if card.lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=card.lost or LOST)
        reader = self._cards.reader(card)
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
