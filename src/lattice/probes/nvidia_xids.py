"""XIDs: errors that the driver reports for a card, counted since the agent started.

NVML queues them; a reading takes the queued events and does not wait.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.probes.nvidia_card import NOT_REPORTED, reading
from lattice.probes.nvidia_cards import Card
from lattice.probes.nvml import Nvml, NvmlFailed

XIDS = "gpu_xid_total"
NONE_YET = "no error was reported since the agent started"
_MOST_A_READING = 256
_LARGEST_XID = 2**16
_MOST_KINDS = 64
"""For one card: the number of label values must be limited."""


class XidCounter:
    """Receives the events of all cards; used by one thread at a time."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._session = 0
        self._set: Any = None
        self._deaf: dict[str, str] = {}
        self._registered: set[str] = set()
        self._names: dict[int, str] = {}
        self._counted: dict[str, Counter[int]] = {}

    def take(self, cards: Iterable[Card]) -> None:
        """Count the events since the last call. Never raises."""
        if self._session != self._nvml.session:
            self._session = self._nvml.session
            self._set, self._registered, self._deaf, self._names = None, set(), {}, {}
        try:
            if self._set is None:
                self._set = self._nvml.call("nvmlEventSetCreate")
            for card in cards:
                self._listen(card)
                if card.uuid and (address := _address(card.handle)) is not None:
                    self._names[address] = card.uuid
            for _ in range(_MOST_A_READING):
                self._count(self._nvml.call("nvmlEventSetWait", self._set, 0))
        except NvmlFailed as failed:
            # A timeout means that the queue is empty. The cards' own readings show other errors.
            if failed.lost:
                self._begin_anew()

    def _begin_anew(self) -> None:
        """An event set with a lost card gives no events any more; the next one omits it."""
        held, self._set = self._set, None
        self._registered.clear()
        if held is not None:
            with suppress(NvmlFailed):
                self._nvml.call("nvmlEventSetFree", held)

    def of(self, uuid: str) -> dict[int, int]:
        """The number of events of each XID of a card."""
        return dict(self._counted.get(uuid, {}))

    def readings(self, card: Card, time: float) -> list[MetricReading]:
        labels = labelled(gpu_uuid=card.uuid)
        counted = self._counted.get(card.uuid)
        if counted:
            return [
                reading(XIDS, count, 1.0, time, gpu_uuid=card.uuid, xid=str(xid))
                for xid, count in sorted(counted.items())
            ]
        if card.uuid in self._deaf:
            return [Absence(XIDS, NOT_REPORTED, self._deaf[card.uuid], labels)]
        return [Absence(XIDS, NONE_YET, labels=labels)]

    def _listen(self, card: Card) -> None:
        if card.lost or not card.uuid or card.uuid in self._registered or card.uuid in self._deaf:
            return
        kind = self._nvml.constant("nvmlEventTypeXidCriticalError")
        try:
            self._nvml.call("nvmlDeviceRegisterEvents", card.handle, kind, self._set)
        except NvmlFailed as failed:
            if failed.ends_session:
                raise
            self._deaf[card.uuid] = failed.text
        else:
            self._registered.add(card.uuid)

    def _count(self, event: Any) -> None:
        address, xid = _address(event.device), event.eventData
        uuid = None if address is None else self._names.get(address)
        if uuid is None or type(xid) is not int or not 0 <= xid < _LARGEST_XID:
            return
        counted = self._counted.setdefault(uuid, Counter())
        if xid in counted or len(counted) < _MOST_KINDS:
            counted[xid] += 1


def _address(handle: Any) -> int | None:
    """The address of a handle: a card that fell off the bus has no readable UUID."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return None
