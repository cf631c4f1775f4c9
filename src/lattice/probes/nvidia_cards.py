"""The node's NVIDIA cards: which exist, which are lost, and their MIG instances.

The UUID identifies a card. NVML's index and the minor number of the device file both depend on what
is plugged in, and differ on real machines. The UUIDs of known cards are remembered, so a card still
has its UUID when it falls off the bus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lattice.base.clock import Clock
from lattice.base.text import inert
from lattice.domain.metric import MetricReading
from lattice.probes.nvidia_card import LOST, CardReader, lost_card
from lattice.probes.nvml import BROKEN, NO_CARDS, NOT_FOUND, Nvml, NvmlFailed
from lattice.probes.probe import ProbeFailed

UNREADABLE = "NVML does not tell what card it is"

_MOST_CARDS = 256
_MOST_INSTANCES = 64
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: a part of a card with its own memory."""

    uuid: str
    handle: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card at this reading. `lost` is NVML's error if it does not answer."""

    index: int
    uuid: str
    """Empty for a card that was lost before it was read."""
    minor: int | None
    """Of its device file, `/dev/nvidia3`."""
    name: str
    handle: Any = None
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    lost: str = ""
    why_lost: str = LOST


class NvidiaCards:
    """All cards of the node; used by one thread at a time."""

    def __init__(self, nvml: Nvml, clock: Clock) -> None:
        self.nvml = nvml
        self._clock = clock
        self._known: dict[int, Card] = {}
        self._session = 0

    def scan(self) -> tuple[Card, ...]:
        """All cards, lost ones included. Raises `ProbeFailed`."""
        self.nvml.start()
        if self._session != self.nvml.session:
            self._session = self.nvml.session
            # Handles of an earlier session are invalid; the cards' names stay.
            self._known = {index: replace(card, handle=None) for index, card in self._known.items()}
        try:
            count = int(self.nvml.call("nvmlDeviceGetCount"))
        except NvmlFailed as failed:
            raise ProbeFailed(BROKEN, failed.text) from None
        if not count:
            raise ProbeFailed(NO_CARDS)
        return tuple(self._card(index) for index in range(min(count, _MOST_CARDS)))

    def read(self, card: Card) -> list[MetricReading]:
        """Every metric of a card and of its instances. Raises `ProbeFailed`."""
        if card.lost:
            return lost_card(card.uuid, card.lost, card.why_lost)
        instances = len(card.instances) if card.mig else None
        found = self.reader(card).all(instances=instances)
        return found + [each for instance in card.instances for each in self.read_part(instance)]

    def read_part(self, instance: Instance) -> list[MetricReading]:
        """The metrics of a MIG instance itself. Raises `ProbeFailed`."""
        return CardReader(self.nvml, instance.handle, instance.uuid, self._time()).instance()

    def reader(self, card: Card) -> CardReader:
        return CardReader(self.nvml, card.handle, card.uuid, self._time())

    def _time(self) -> Callable[[], float]:
        return lambda: self._clock.now().timestamp()

    def _card(self, index: int) -> Card:
        known = self._known.get(index)
        try:
            if known is None or known.handle is None:
                known = self._known[index] = self._met(index)
            mig = self._has_mig(known.handle)
            instances = self._instances(known.handle) if mig else ()
        except NvmlFailed as failed:
            if failed.ends_session:
                raise ProbeFailed(BROKEN, failed.text) from None
            before = self._known.get(index) or Card(index=index, uuid="", minor=None, name="")
            return replace(before, lost=failed.text, why_lost=LOST if failed.lost else UNREADABLE)
        return replace(known, mig=mig, instances=instances)

    def _met(self, index: int) -> Card:
        handle = self.nvml.call("nvmlDeviceGetHandleByIndex", index)
        uuid = text_of(self.nvml.call("nvmlDeviceGetUUID", handle))
        name = text_of(self._or_none("nvmlDeviceGetName", handle))
        minor = self._or_none("nvmlDeviceGetMinorNumber", handle)
        return Card(index=index, uuid=uuid, minor=minor, name=name, handle=handle)

    def _has_mig(self, handle: Any) -> bool:
        mode = self._or_none("nvmlDeviceGetMigMode", handle)
        return isinstance(mode, list | tuple) and len(mode) > 0 and mode[0] == 1

    def _instances(self, handle: Any) -> tuple[Instance, ...]:
        most = self._or_none("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        found = []
        for index in range(min(int(most), _MOST_INSTANCES)):
            try:
                part = self.nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
                found.append(Instance(text_of(self.nvml.call("nvmlDeviceGetUUID", part)), part))
            except NvmlFailed as failed:
                if failed.code != NOT_FOUND and not failed.not_supported:
                    raise
        return tuple(found)

    def _or_none(self, function: str, handle: Any) -> Any:
        try:
            return self.nvml.call(function, handle)
        except NvmlFailed as failed:
            if failed.lost or failed.ends_session:
                raise
            return None


def text_of(value: Any) -> str:
    """A text from the binding, safe to show."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
    return inert(text)[:_LONGEST_NAME]
