"""Whether a node's GPUs work: `healthy`, `warning` or `failure`, with reasons. Pure.

Every change of the verdict is published, so it must not flap. A temporary condition (a hot card, a
burst of corrected errors) must last before it counts, and then counts for a while. A condition from
which a card does not recover stays until the agent restarts. The repair needs that restart too: a
card in use can't be reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.base.text import inert
from lattice.domain.node import HealthState, NodeHealth

FATAL_XIDS: Mapping[int, str] = {
    48: "memory error that could not be corrected",
    64: "broken memory that could not be replaced",
    79: "the card fell off the bus",
    95: "memory error that spread beyond one program",
    119: "the card's own processor does not answer",
    120: "the card's own processor failed",
    140: "memory error that could not be corrected",
    143: "the card could not be started",
}
"""After these a card needs a reset or a repair. XIDs that a program can cause are not included."""
GRAVE_XIDS: Mapping[int, str] = {
    63: "broken memory was replaced; a reset makes it so",
    74: "an NVLink failed",
    92: "many memory errors were corrected",
    94: "memory error that ended one program",
}
AT_LIMIT = frozenset({"sw_power_cap"})
"""No warning: a busy card is at its power limit."""
LASTING_READINGS = 3
HELD_S = 300.0
STORM_PER_HOUR = 1000.0
_MOST_REASONS = 8
_LONGEST_REASON = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCondition:
    """The readings of one card. None: the card does not report it."""

    uuid: str
    name: str = ""
    lost: str = ""
    """The library's error if the card does not answer."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    throttled: tuple[str, ...] = ()
    xids: Mapping[int, int] = field(default_factory=dict)
    nvlinks: int | None = None
    """How many are up, of NVLink or XGMI."""
    nvlink_bytes_s: float | None = None
    """Their capacity, both directions together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One reading of all cards; or why there are none (`nothing`), or what failed."""

    time: float
    cards: tuple[CardCondition, ...] = ()
    nothing: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedGpus:
    """What the site expects the node to have; None and empty: no expectation."""

    count: int | None = None
    kind: str = ""


class GpuHealthJudge:
    """Judges one reading after the other, by the times of the readings."""

    def __init__(self, expected: ExpectedGpus, beside: Sequence[str] = ()) -> None:
        """`beside`: other, permanent warnings of this node."""
        self._expected = expected
        self._beside = tuple(beside)
        self._before: GpuReading | None = None
        self._slow_readings: dict[str, int] = {}
        self._held: dict[str, float] = {}
        """Temporary warnings, and when each was last seen."""

    def see(self, reading: GpuReading) -> NodeHealth:
        """The verdict about the node after this reading."""
        failures = list(_failures(reading))
        for warning in (*self._slowed(reading), *self._storms(reading)):
            self._held[warning] = reading.time
        self._held = {
            warning: seen
            for warning, seen in self._held.items()
            if 0 <= reading.time - seen < HELD_S
        }
        mismatches = (*self._mismatches(reading), *self._beside)
        warnings = [*_warnings(reading), *mismatches, *sorted(self._held)]
        if reading.cards:
            self._before = reading
        if failures:
            return _health(HealthState.FAILURE, failures + warnings)
        if warnings:
            return _health(HealthState.WARNING, warnings)
        # Without a card nothing is known, which is not the same as healthy.
        return _health(HealthState.HEALTHY if reading.cards else HealthState.UNKNOWN, [])

    def _slowed(self, reading: GpuReading) -> Iterator[str]:
        now: dict[str, int] = {}
        for card in reading.cards:
            reasons = sorted(set(card.throttled) - AT_LIMIT)
            if reasons:
                now[card.uuid] = self._slow_readings.get(card.uuid, 0) + 1
                if now[card.uuid] >= LASTING_READINGS:
                    yield f"{card.uuid} is slowed down ({', '.join(reasons)})"
        self._slow_readings = now

    def _storms(self, reading: GpuReading) -> Iterator[str]:
        before = self._before
        if before is None or reading.time <= before.time:
            return
        earlier = {card.uuid: card.ecc_corrected for card in before.cards}
        for card in reading.cards:
            was = earlier.get(card.uuid)
            if was is None or card.ecc_corrected is None:
                continue
            an_hour = (card.ecc_corrected - was) / (reading.time - before.time) * 3600
            if an_hour > STORM_PER_HOUR:
                yield f"{card.uuid} has a storm of corrected memory errors"

    def _mismatches(self, reading: GpuReading) -> Iterator[str]:
        expected, there = self._expected, [card for card in reading.cards if not card.lost]
        if reading.failure:
            return
        if expected.count is not None and len(there) != expected.count:
            why = f": {reading.nothing}" if reading.nothing else ""
            yield f"{len(there)} GPUs instead of {expected.count}{why}"
        for card in there:
            if expected.kind and expected.kind.lower() not in card.name.lower():
                yield f"{card.uuid} is of the kind {card.name!r} instead of {expected.kind!r}"


def _failures(reading: GpuReading) -> Iterator[str]:
    if reading.failure:
        yield reading.failure
    for card in reading.cards:
        who = card.uuid or "a GPU"
        if card.lost:
            yield f"{who} is lost ({card.lost})"
        if card.ecc_uncorrected:
            yield f"{who} has {card.ecc_uncorrected} memory errors that could not be corrected"
        for xid in sorted(FATAL_XIDS.keys() & card.xids.keys()):
            yield f"{who} reported XID {xid}: {FATAL_XIDS[xid]}"


def _warnings(reading: GpuReading) -> Iterator[str]:
    for card in reading.cards:
        for xid in sorted(GRAVE_XIDS.keys() & card.xids.keys()):
            yield f"{card.uuid} reported XID {xid}: {GRAVE_XIDS[xid]}"


def _health(health: HealthState, reasons: list[str]) -> NodeHealth:
    shown = tuple(inert(each)[:_LONGEST_REASON] for each in reasons[:_MOST_REASONS])
    return NodeHealth(health, shown)
