"""The probe of a node's cards, whatever their maker: metrics for the jobs, conditions for the node.

The servers send which cards a job has, from Slurm's GRES detail. A card is read once, even if
several jobs share it. A job without GPUs costs nothing. What differs between makers is behind the
port `CardDriver`: the same catalogue, and the same shape of answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from lattice.base.clock import Clock
from lattice.domain.metric import Absence, MetricReading
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.gpuhealth import CardCondition, GpuReading
from lattice.probes.probe import Found, ProbeFailed

NO_GPUS = "the job has no GPUs"
NOT_KNOWN_YET = "which GPUs Slurm gave the job is not known yet"
HELD_S = 10.0


class CardDevice(Protocol):
    """A card or a part of one."""

    @property
    def uuid(self) -> str: ...


ChosenDevice: TypeAlias = Any
"""A `CardDevice` of the driver, or a text: why there is none."""


class CardDriver(Protocol):
    """The cards of one maker. Used by one thread at a time."""

    @property
    def metrics(self) -> frozenset[str]:
        """Every metric that it may return."""

    @property
    def nothing(self) -> frozenset[str]:
        """Reasons of `ProbeFailed` that mean: there are no cards of this maker here."""

    @property
    def broken(self) -> str:
        """The reason if the driver fails without a message."""

    @property
    def hangs(self) -> str:
        """The reason if another call is still under way."""

    def scan(self) -> Sequence[Any]:
        """All cards, lost ones included. Raises `ProbeFailed`."""

    def choose(self, index: int, cards: Sequence[Any]) -> ChosenDevice:
        """The device of one of Slurm's numbers."""

    def read(self, device: Any) -> list[MetricReading]:
        """Every metric of a device. Raises `ProbeFailed`."""

    def condition(self, card: Any) -> CardCondition:
        """The condition of a card. Raises `ProbeFailed`."""

    def stop(self) -> None:
        """Give the driver back."""


class CardProbe:
    """`read` is for the jobs, `condition` for the node; both are thread-safe."""

    def __init__(
        self,
        name: str,
        driver: CardDriver,
        gpus_of: Callable[[int], tuple[int, ...] | None],
        clock: Clock,
        *,
        held_s: float = HELD_S,
    ) -> None:
        """`gpus_of`: a job's GPUs by Slurm's numbers; None: the servers have not sent them yet.

        `held_s`: how long `condition` waits for a `read` that is under way.
        """
        self.name = name
        self.metrics = driver.metrics
        self._driver = driver
        self._gpus_of = gpus_of
        self._clock = clock
        self._held_s = held_s
        self._one_at_a_time = threading.Lock()
        self._seen: Sequence[Any] = ()

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
        devices = (self._driver.choose(index, self._seen) for index in indices)
        return tuple(each.uuid for each in devices if not isinstance(each, str)) or None

    def condition(self) -> GpuReading:
        """The condition of all cards, used or not. Blocks; never raises."""
        time = self._clock.now().timestamp()
        if not self._one_at_a_time.acquire(timeout=self._held_s):
            return GpuReading(time=time, failure=self._driver.hangs)
        try:
            cards = self._scan()
            conditions = tuple(self._driver.condition(card) for card in cards)
            return GpuReading(time=time, cards=conditions)
        except ProbeFailed as failed:
            if failed.reason in self._driver.nothing:
                return GpuReading(time=time, nothing=failed.reason)
            return GpuReading(time=time, failure=failed.last_error or self._driver.broken)
        finally:
            self._one_at_a_time.release()

    def close(self) -> None:
        """Give the driver back."""
        self._driver.stop()

    def _scan(self) -> Sequence[Any]:
        self._seen = self._driver.scan()
        return self._seen

    def _of(
        self, indices: tuple[int, ...], cards: Sequence[Any], taken: dict[str, list[MetricReading]]
    ) -> list[MetricReading]:
        readings: list[MetricReading] = []
        for index in dict.fromkeys(indices):
            device = self._driver.choose(index, cards)
            if isinstance(device, str):
                readings += self._nothing(device)
                continue
            if device.uuid not in taken:
                taken[device.uuid] = self._driver.read(device)
            readings += taken[device.uuid]
        return readings

    def _nothing(self, reason: str, last_error: str = "") -> list[MetricReading]:
        return [Absence(each, reason, last_error) for each in sorted(self.metrics)]
