"""A capture of one machine, and the differences between two. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lattice.base.strictjson import read_json
from lattice.base.text import inert
from lattice.domain.machine_facts import BadMachineFacts, MachineFact, fact_value, read_facts
from lattice.domain.statistics.mean_difference import (
    LEAST_SAMPLES,
    adjusted,
    difference,
    level_of,
)
from lattice.domain.statistics.sureness import Sureness, sureness_of

VERSION = 1
KIND = "lattice-bench"
LARGEST_BYTES = 4 * 1024 * 1024
_MOST_SAMPLES, _LONGEST = 1000, 300
_SMALLEST, _LARGEST = 1e-12, 1e18
MEASURES: Mapping[str, tuple[str, str, bool]] = {
    "memory_copy": ("copying memory", "bytes/s", True),
    "cpu_hash": ("SHA-256", "bytes/s", True),
    "cpu_loop": ("loop of Python", "steps/s", True),
    "disk_write": ("writing to disk", "bytes/s", True),
    "disk_read": ("reading from disk", "bytes/s", True),
    "loopback": ("TCP in the machine", "bytes/s", True),
    "loopback_trip": ("its round trip", "s", False),
    "fio_read": ("fio, reading in order", "bytes/s", True),
    "fio_random_read": ("fio, reading at random", "reads/s", True),
    "rdma_write": ("ib_write_bw", "bytes/s", True),
}
"""Every measure with its title, its unit, and whether more is better."""
_CHANGING = frozenset({"uptime_seconds", "root_disk_free_bytes", "read_seconds", "waited_percent"})
"""Facts that differ between any two captures."""
_BUSY_PERCENT = 10.0
REPEAT = f"capture again with --repeat {LEAST_SAMPLES} or more"


class BadCapture(ValueError):
    """The file is no capture; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The samples of one measure, or why there are none."""

    name: str
    samples: tuple[float, ...] = ()
    tool: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One machine: its facts and its figures."""

    name: str
    time: datetime
    version: str
    """Of Lattice."""
    facts: tuple[MachineFact, ...]
    measures: tuple[Measured, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureDifference:
    """One measure of both machines. `percent` is the change from A to B, with its 95 % interval."""

    name: str
    unit: str
    more_is_better: bool
    a: float | None = None
    b: float | None = None
    percent: float | None = None
    percent_low: float | None = None
    percent_high: float | None = None
    sureness: Sureness = Sureness.UNKNOWN
    smallest_percent: float | None = None
    """The smallest difference that 80 of 100 such comparisons would find."""
    samples: tuple[int, int] = (0, 0)
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """A fact that differs. An empty value has its reason."""

    name: str
    a: str
    b: str
    a_reason: str = ""
    b_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchComparison:
    """B against A."""

    a: str
    b: str
    measures: tuple[MeasureDifference, ...]
    facts: tuple[FactDifference, ...]
    notes: tuple[str, ...] = ()


def document_of(capture: Capture) -> dict[str, Any]:
    """The content of the file."""
    return {
        "kind": KIND,
        "version": VERSION,
        "name": capture.name,
        "time": capture.time.isoformat(),
        "lattice": capture.version,
        "facts": {each.name: _fact_document(each) for each in capture.facts},
        "measures": {
            each.name: {
                "unit": MEASURES[each.name][1],
                "more_is_better": MEASURES[each.name][2],
                "tool": each.tool,
                **({"samples": each.samples} if each.samples else {"reason": each.reason}),
            }
            for each in capture.measures
        },
    }


def _fact_document(fact: MachineFact) -> dict[str, Any]:
    if fact.number is not None:
        return {"value": fact.number}
    return {"value": fact.text} if fact.text else {"reason": fact.reason}


def read_capture(raw: bytes) -> Capture:
    """Parse a file. Raises `BadCapture` and nothing else."""
    if len(raw) > LARGEST_BYTES:
        raise BadCapture(f"it has more than {LARGEST_BYTES} bytes")
    try:
        found = read_json(raw)
    except ValueError:
        raise BadCapture("it is no valid JSON") from None
    if type(found) is not dict or found.get("kind") != KIND:
        raise BadCapture("it is no file of `lattice bench capture`")
    if found.get("version") != VERSION:
        raise BadCapture("it is of another version of Lattice")
    measures = found.get("measures")
    if type(measures) is not dict:
        raise BadCapture("it has no measures")
    try:
        return Capture(
            name=_text(found.get("name")),
            time=datetime.fromisoformat(_text(found.get("time"))),
            version=_text(found.get("lattice")),
            facts=read_facts(found.get("facts")),
            measures=tuple(
                _measured(name, measures[name]) for name in MEASURES if name in measures
            ),
        )
    except BadMachineFacts as error:
        raise BadCapture(str(error)) from None
    except BadCapture:
        raise
    except ValueError:
        raise BadCapture("its time is not valid") from None


def _measured(name: str, value: Any) -> Measured:
    if type(value) is not dict:
        raise BadCapture(f"{name} is no object")
    samples = value.get("samples", [])
    if type(samples) is not list or len(samples) > _MOST_SAMPLES:
        raise BadCapture(f"{name} has no list of samples, or a longer one")
    for each in samples:
        if type(each) not in {int, float} or not _SMALLEST <= each <= _LARGEST:
            raise BadCapture(f"{name} has a sample that can't be right")
    reason = _text(value.get("reason", ""))
    return Measured(
        name=name,
        samples=tuple(map(float, samples)),
        tool=_text(value.get("tool", "")),
        reason=reason if samples else reason or "the file has no samples of it",
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise BadCapture("a text is missing")
    return inert(value)[:_LONGEST]


def compared_captures(a: Capture, b: Capture) -> BenchComparison:
    """Every measure and every fact of B against A."""
    pairs = [(name, _of(a, name), _of(b, name)) for name in MEASURES]
    rows = [_compared(name, left, right) for name, left, right in pairs if left or right]
    known = [at for at, (_, chance) in enumerate(rows) if chance is not None]
    chances = adjusted([chance for _, chance in rows if chance is not None])
    measures = [row for row, _ in rows]
    for at, among_all in zip(known, chances, strict=True):
        its_own = rows[at][1]
        assert its_own is not None
        measures[at] = _with_sureness(measures[at], its_own, among_all)
    return BenchComparison(
        a=a.name,
        b=b.name,
        measures=tuple(measures),
        facts=_fact_differences(a, b),
        notes=(*_busy(a, "A"), *_busy(b, "B"), *_notes(pairs)),
    )


def _of(capture: Capture, name: str) -> Measured | None:
    return next((each for each in capture.measures if each.name == name), None)


def _compared(
    name: str, left: Measured | None, right: Measured | None
) -> tuple[MeasureDifference, float | None]:
    """The difference, and its p-value if there is one."""
    _, unit, more_is_better = MEASURES[name]
    sides = [each.samples if each is not None else () for each in (left, right)]
    levels = [level_of(each) for each in sides]
    means = [math.fsum(each) / len(each) if each else None for each in sides]
    row = MeasureDifference(
        name=name,
        unit=unit,
        more_is_better=more_is_better,
        a=means[0],
        b=means[1],
        samples=(len(sides[0]), len(sides[1])),
    )
    if levels[0] is None or levels[1] is None:
        at = 0 if levels[0] is None else 1
        side, label = (left, right)[at], "AB"[at]
        few = f"{len(sides[at])} samples are too few: {REPEAT}"
        reason = few if sides[at] else side.reason if side is not None else "not in the file"
        return replace(row, reason=f"{label}: {reason}"), None
    found = difference(levels[0], levels[1])
    if found.percent is None:
        return replace(row, reason="A varies too much for a difference in percent"), None
    return (
        replace(
            row,
            percent=found.percent.value,
            percent_low=found.percent.low,
            percent_high=found.percent.high,
            smallest_percent=100.0 * found.smallest / levels[0].mean,
        ),
        found.chance,
    )


def _with_sureness(row: MeasureDifference, its_own: float, among_all: float) -> MeasureDifference:
    return replace(row, sureness=sureness_of(its_own, among_all))


def _fact_differences(a: Capture, b: Capture) -> tuple[FactDifference, ...]:
    left, right = ({each.name: each for each in side.facts} for side in (a, b))
    found = []
    for name in [each.name for each in a.facts] + [
        each.name for each in b.facts if each.name not in left
    ]:
        if name in _CHANGING:
            continue
        first = left.get(name, MachineFact(name=name, reason="not in the file"))
        second = right.get(name, MachineFact(name=name, reason="not in the file"))
        if (first.number, first.text) != (second.number, second.text):
            found.append(
                FactDifference(
                    name=name,
                    a=fact_value(first),
                    b=fact_value(second),
                    a_reason=first.reason,
                    b_reason=second.reason,
                )
            )
    return tuple(found)


def _busy(capture: Capture, label: str) -> list[str]:
    """A note if others kept the processors busy: then the figures are too low."""
    waited = next((each.number for each in capture.facts if each.name == "waited_percent"), None)
    if waited is None or waited < _BUSY_PERCENT:
        return []
    share = f"for {waited:.0f} % of the time a process waited for a processor"
    return [f"{label} was captured on a busy machine: {share}"]


def _notes(pairs: list[tuple[str, Measured | None, Measured | None]]) -> list[str]:
    return [
        f"{MEASURES[name][0]} was measured by {left.tool} in A and by {right.tool} in B"
        for name, left, right in pairs
        if left and right and left.samples and right.samples and left.tool != right.tool
    ]
