"""The NVIDIA probe: what the cards of each job do, read through NVML.

Which cards are a job's is Slurm's word (its GRES detail), told by the servers; a device list of a
control group says nothing on cgroup v2 and is not looked at. A card is read once a look, however
many jobs share it. A job without GPUs costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lattice.base.clock import Clock
from lattice.domain.metric import Absence, Reading
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.gpuhealth import CardCondition, GpuLook
from lattice.probes.nvidia_binding import BROKEN, NO_CARDS, NO_DRIVER, NOT_INSTALLED, Nvml
from lattice.probes.nvidia_card import (
    CARD_METRICS,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    LOST,
    CardLost,
)
from lattice.probes.nvidia_cards import Card, Instance, NvidiaCards
from lattice.probes.nvidia_devices import Chosen, chosen
from lattice.probes.nvidia_xids import XIDS, XidCounter
from lattice.probes.probe import Found, ProbeFailed

NO_GPUS = "the job has no GPUs"
NOT_KNOWN_YET = "which GPUs Slurm gave the job is not known yet"
_HELD_S = 10.0
_HANGS = "NVML has not answered for a while"


class NvidiaProbe:
    """`read` for the jobs, `condition` for the node; both may be asked from threads."""

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
        """`gpus_of`: a job's GPUs by Slurm's numbers; None: the servers have not said yet.

        `held_s`: how long `condition` waits for a `read` that is under way.
        `devices`: what each of Slurm's numbers is, where it is not the number of `/dev/nvidiaN`.
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
        """What the cards of each job tell."""
        found: dict[JobIdentity, Sequence[Reading]] = {}
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
                cards = self._look()
                taken: dict[str, list[Reading]] = {}
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
        """The cards of a job as they were last seen, for who else tells of cards; at once."""
        indices = self._gpus_of(job_id)
        if indices is not None and not indices:
            return ()
        if indices is None or not self._seen:
            return None
        devices = (chosen(index, self._devices, self._seen) for index in indices)
        return tuple(each.uuid for each in devices if not isinstance(each, str)) or None

    def condition(self) -> GpuLook:
        """How the cards are, jobs or not. Blocks; never raises."""
        time = self._clock.now().timestamp()
        if not self._one_at_a_time.acquire(timeout=self._held_s):
            return GpuLook(time=time, failure=_HANGS)
        try:
            cards = self._look()
            return GpuLook(time=time, cards=tuple(self._condition(card) for card in cards))
        except ProbeFailed as failed:
            if failed.reason in (NOT_INSTALLED, NO_DRIVER, NO_CARDS):
                return GpuLook(time=time, nothing=failed.reason)
            return GpuLook(time=time, failure=failed.last_error or BROKEN)
        finally:
            self._one_at_a_time.release()

    def close(self) -> None:
        """Let the driver go."""
        self._cards.nvml.stop()

    def _look(self) -> tuple[Card, ...]:
        cards = self._cards.look()
        self._xids.take(cards)
        self._seen = cards
        return cards

    def _of(
        self, indices: tuple[int, ...], cards: tuple[Card, ...], taken: dict[str, list[Reading]]
    ) -> list[Reading]:
        readings: list[Reading] = []
        for index in dict.fromkeys(indices):
            device = chosen(index, self._devices, cards)
            if isinstance(device, str):
                readings += self._nothing(device)
                continue
            if device.uuid not in taken:
                taken[device.uuid] = self._taken(device)
            readings += taken[device.uuid]
        return readings

    def _taken(self, device: Chosen) -> list[Reading]:
        if isinstance(device, Instance):
            return self._cards.read_part(device)
        assert isinstance(device, Card)
        readings = self._cards.read(device)
        return readings + self._xids.readings(device, self._clock.now().timestamp())

    def _nothing(self, reason: str, last_error: str = "") -> list[Reading]:
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
