"""The table of metrics that the firmware of an AMD card fills: power, throttling, XGMI. Pure.

amd-smi's library hands it out as a structure whose offsets differ between releases. Every bit set
means that the card does not have the field. The table of a release that is not known is not read.

There are two kinds of cards. MI300 and later count, for each cause, the cycles of the firmware in
which it held the clocks down. Two readings give the share of the time between them. Earlier cards
have one bit for each cause, of this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

POWER_CAP = "sw_power_cap"
PROCHOT, SOCKET, REGULATOR, MEMORY = (
    "prochot_thermal",
    "socket_thermal",
    "regulator_thermal",
    "memory_thermal",
)
HEAT = frozenset({PROCHOT, SOCKET, REGULATOR, MEMORY})
LEAST_SHARE = 0.01
"""Of the time between two readings; below it a card does not count as slowed down."""

_NARROW = {
    "bits": 112,
    "power": 120,
    "width": 136,
    "speed": 138,
    "read": 184,
    "written": 248,
    "cycles": 424,
}
_WIDE = {
    "bits": 120,
    "power": 128,
    "width": 144,
    "speed": 146,
    "read": 192,
    "written": 256,
    "cycles": 440,
}
_OFFSETS: Mapping[int, Mapping[str, int]] = {24: _NARROW, 25: _NARROW, 26: _NARROW, 27: _WIDE}
"""By release. The counters of throttling follow `cycles`; releases before 6.3 end there."""
_AVERAGE_POWER = 22
"""Of every release; cards before MI300 have only this one."""
_COUNTERS = (PROCHOT, POWER_CAP, SOCKET, REGULATOR, MEMORY)
_BITS: Mapping[str, tuple[int, ...]] = {
    POWER_CAP: tuple(range(8)),
    # Without bit 36, the hotspot: firmware of some cards sets it at 37 degrees.
    SOCKET: (32, 33, 35, 37, 42, 43),
    MEMORY: (34,),
    REGULATOR: (38, 39, 40, 41, 44, 45),
    PROCHOT: (46, 47),
}
"""The limits of current (bits 16 to 23) are left out: they are neither heat nor want of power."""
_LINKS = 8
_WORD, _LONG = 2, 8
_KIB = 1024
_GIGABIT_BYTES = 1e9 / 8
_MOST_LANES = 64


@dataclass(frozen=True, slots=True)
class Residency:
    """The firmware's counters of one moment. A cause that it does not count is missing."""

    cycles: int
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTable:
    """What a card's table has; None: the card does not report it."""

    watts: float | None = None
    residency: Residency | None = None
    active: Mapping[str, bool] | None = None
    """By cause, of cards without counters."""
    xgmi_bytes: int | None = None
    """Moved over all its XGMI links, both ways."""
    xgmi_link_bytes_s: float | None = None
    """What one link can carry one way."""


def read_table(raw: bytes, release: int) -> MetricsTable | None:
    """The table of one card; None for a release whose offsets are not known."""
    at = _OFFSETS.get(release)
    if at is None:
        return None
    bits = _number(raw, at["bits"], _LONG)
    speed, width = _number(raw, at["speed"], _WORD), _number(raw, at["width"], _WORD)
    now, average = (_number(raw, each, _WORD) for each in (at["power"], _AVERAGE_POWER))
    return MetricsTable(
        watts=now or average,
        residency=_residency(raw, at["cycles"]),
        active=None if bits is None else active(bits),
        xgmi_bytes=_moved(raw, at["read"], at["written"]),
        xgmi_link_bytes_s=link_bytes_s(speed, width),
    )


def link_bytes_s(gigabits: float | None, lanes: int | None) -> float | None:
    """What a link can carry one way. `gigabits`: of one lane; a zero is no measurement."""
    if not gigabits or not lanes or lanes > _MOST_LANES:
        return None
    return gigabits * lanes * _GIGABIT_BYTES


def active(bits: int) -> dict[str, bool]:
    """Whether each cause holds, by the bits that are the same for all cards."""
    return {
        cause: any(bits >> position & 1 for position in positions)
        for cause, positions in _BITS.items()
    }


def _residency(raw: bytes, offset: int) -> Residency | None:
    cycles, *counters = (
        _number(raw, offset + _LONG * each, _LONG) for each in range(1 + len(_COUNTERS))
    )
    held = {
        cause: count for cause, count in zip(_COUNTERS, counters, strict=True) if count is not None
    }
    return Residency(cycles, held) if cycles and held else None


def _moved(raw: bytes, *offsets: int) -> int | None:
    """None if any link is missing: a sum without it would look like the total."""
    counts = [
        _number(raw, offset + _LONG * link, _LONG) for offset in offsets for link in range(_LINKS)
    ]
    known = [each for each in counts if each is not None]
    return sum(known) * _KIB if len(known) == len(counts) else None


def _number(raw: bytes, offset: int, size: int) -> int | None:
    value = int.from_bytes(raw[offset : offset + size], "little")
    return None if value == (1 << 8 * size) - 1 else value


class ThrottleMeter:
    """Turns two readings of a card's counters into the share of time that each cause held it down.

    Used by one thread at a time.
    """

    def __init__(self) -> None:
        self._before: dict[str, Residency] = {}
        self._last: dict[str, dict[str, float]] = {}

    def shares(self, uuid: str, now: Residency) -> dict[str, float] | None:
        """By cause, since the last reading of this card; None after the first one."""
        before = self._before.get(uuid)
        if before is not None and now.cycles == before.cycles:
            # The driver renews the table every 100 ms: this is the same one.
            return self._last.get(uuid)
        self._before[uuid] = now
        if before is None or now.cycles < before.cycles:
            self._last.pop(uuid, None)
            return None
        passed = now.cycles - before.cycles
        self._last[uuid] = {
            cause: (count - before.held[cause]) / passed
            for cause, count in now.held.items()
            if before.held.get(cause, count + 1) <= count
        }
        return self._last[uuid]
