"""What the command `amd-smi` prints with `--json`, whichever release printed it. Pure.

Releases differ: a list of cards or an object with one; `{"value": 73, "unit": "%"}` or `"73 %"`; a
field under another name. `N/A` is no value, and neither is a number with a unit that is not known.
An error is printed as an object too, even with exit status 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from lattice.base.strictjson import read_json
from lattice.base.text import inert
from lattice.probes.amd_table import (
    MEMORY,
    POWER_CAP,
    PROCHOT,
    REGULATOR,
    SOCKET,
    MetricsTable,
    Residency,
)
from lattice.probes.nvidia_card import ECC_CORRECTED, ECC_UNCORRECTED, MEMORY_TOTAL, MEMORY_USED
from lattice.probes.nvidia_card import UTILISATION as _UTILISATION

Entry: TypeAlias = Mapping[str, Any]
"""What the command prints of one card."""
Path: TypeAlias = tuple[str, ...]

_COUNT: Mapping[str, float] = {"": 1.0}
_PERCENT: Mapping[str, float] = {"%": 1.0}
_CELSIUS: Mapping[str, float] = {"C": 1.0, "°C": 1.0}
_WATTS: Mapping[str, float] = {"W": 1.0, "mW": 1e-3, "uW": 1e-6}
_HERTZ: Mapping[str, float] = {"MHz": 1e6, "GHz": 1e9}
_JOULES: Mapping[str, float] = {"J": 1.0, "mJ": 1e-3, "kJ": 1e3}
_BYTES: Mapping[str, float] = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
"""Its KB are of 1024 bytes."""
_GIGABITS: Mapping[str, float] = {"Gb/s": 1e9}

_TEXT = re.compile(r"(-?\d{1,20}(?:\.\d{1,20})?)(?: ?([A-Za-z°%/]{1,5}))?", re.ASCII)
_DEEPEST = 4
_MOST_CARDS = 256
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a figure stands, the usual name first."""

    paths: tuple[Path, ...]
    units: Mapping[str, float]


_FIGURES: Mapping[str, _Source] = {
    _UTILISATION: _Source((("usage", "gfx_activity"), ("usage", "gfx_usage")), _PERCENT),
    MEMORY_USED: _Source((("mem_usage", "used_vram"),), _BYTES),
    MEMORY_TOTAL: _Source((("mem_usage", "total_vram"),), _BYTES),
    "gpu_temperature_celsius": _Source(
        (("temperature", "hotspot"), ("temperature", "edge")), _CELSIUS
    ),
    "gpu_clock_sm_hertz": _Source((("clock", "gfx_0", "clk"), ("clock", "gfx", "clk")), _HERTZ),
    "gpu_clock_memory_hertz": _Source((("clock", "mem_0", "clk"), ("clock", "mem", "clk")), _HERTZ),
    "gpu_power_watts": _Source(
        (
            ("power", "socket_power"),
            ("power", "current_socket_power"),
            ("power", "average_socket_power"),
        ),
        _WATTS,
    ),
    "gpu_energy_joules_total": _Source((("energy", "total_energy_consumption"),), _JOULES),
    ECC_CORRECTED: _Source(
        (("ecc", "total_correctable_count"), ("ecc", "total_correctable")), _COUNT
    ),
    ECC_UNCORRECTED: _Source(
        (("ecc", "total_uncorrectable_count"), ("ecc", "total_uncorrectable")), _COUNT
    ),
}
_LIMIT = _Source(
    (
        ("limit", "socket_power"),
        ("limit", "ppt0", "socket_power_limit"),
        ("limit", "socket_power_limit"),
    ),
    _WATTS,
)
_REPLAYS = _Source((("pcie", "replay_count"), ("pcie", "replay")), _COUNT)
_COUNTERS = {
    PROCHOT: "prochot_accumulated",
    POWER_CAP: "ppt_accumulated",
    SOCKET: "socket_thermal_accumulated",
    REGULATOR: "vr_thermal_accumulated",
    MEMORY: "hbm_thermal_accumulated",
}


class BadAmdAnswer(ValueError):
    """The command printed no cards; the text is its own, as far as it has one."""


def read_cards(printed: bytes) -> dict[int, Entry]:
    """What was printed of each card, by its index. Raises `BadAmdAnswer`."""
    # Warnings may stand above the document.
    begins = re.search(rb"^[ \t]*[\[{]", printed, re.MULTILINE)
    try:
        document = read_json(printed[begins.start() :] if begins else printed)
    except ValueError:
        raise BadAmdAnswer("what it printed is no JSON") from None
    if isinstance(document, dict) and "error" in document:
        raise BadAmdAnswer(inert(str(document["error"]))[:_LONGEST])
    found: dict[int, Entry] = {}
    for entry in _entries(document, _DEEPEST):
        found.setdefault(entry["gpu"], entry)
    if len(found) > _MOST_CARDS:
        raise BadAmdAnswer("it printed more cards than a node has")
    return found


def _entries(document: Any, deeper: int) -> Iterator[Entry]:
    if isinstance(document, dict):
        index = document.get("gpu")
        if type(index) is int and index >= 0:
            yield document
            return
        document = list(document.values())
    if isinstance(document, list) and deeper:
        for each in document:
            yield from _entries(each, deeper - 1)


def text_of(entry: Entry, *paths: Path) -> str:
    """The first of these that has a text; empty if none has one."""
    found = (_at(entry, path) for path in paths)
    return next((each for each in found if isinstance(each, str) and each not in {"", "N/A"}), "")


def figures_of(metric: Entry, static: Entry) -> dict[str, float]:
    """The figures of a card by the catalogue's names. What it does not report is missing."""
    found = {name: _number(metric, source) for name, source in _FIGURES.items()}
    found["gpu_power_limit_watts"] = _number(static, _LIMIT)
    return {name: value for name, value in found.items() if value is not None}


def replays_of(metric: Entry) -> float | None:
    """How often something was sent again over PCIe."""
    return _number(metric, _REPLAYS)


def table_of(metric: Entry, xgmi: Entry) -> MetricsTable:
    """Throttling and XGMI. It prints no causes for cards without counters."""
    cycles, held = _whole(metric, "accumulation_counter"), {}
    for cause, name in _COUNTERS.items():
        count = _whole(metric, name)
        if count is not None:
            held[cause] = count
    links = _at(xgmi, ("link_metrics", "links"))
    counts = [
        _measured(each.get(direction), _BYTES)
        for each in (links if isinstance(links, list) else [])
        if isinstance(each, dict)
        for direction in ("read", "write")
    ]
    # A card has no link to itself, which is printed as one without counts.
    known = [each for each in counts if each is not None]
    return MetricsTable(
        residency=Residency(cycles, held) if cycles and held else None,
        xgmi_bytes=int(sum(known)) if known else None,
        xgmi_link_bytes_s=_capacity(xgmi),
    )


def _capacity(xgmi: Entry) -> float | None:
    """Of one link one way. Early releases print the number of lanes as bandwidth."""
    found = _measured(_at(xgmi, ("link_metrics", "max_bandwidth")), _GIGABITS)
    one_lane = _measured(_at(xgmi, ("link_metrics", "bit_rate")), _GIGABITS)
    return found / 8 if found and one_lane and found > one_lane else None


def _whole(metric: Entry, name: str) -> int | None:
    value = _measured(_at(metric, ("throttle", name)), _COUNT)
    return None if value is None else int(value)


def _number(entry: Entry, source: _Source) -> float | None:
    values = (_measured(_at(entry, path), source.units) for path in source.paths)
    return next((each for each in values if each is not None), None)


def _at(entry: Any, path: Path) -> Any:
    for name in path:
        if not isinstance(entry, dict):
            return None
        entry = entry.get(name)
    return entry


def _measured(value: Any, units: Mapping[str, float]) -> float | None:
    unit: Any = ""
    if isinstance(value, dict):
        value, unit = value.get("value"), value.get("unit", "")
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value.strip()[:_LONGEST])):
        value, unit = float(match[1]), match[2] or ""
    if type(value) not in (int, float) or not isinstance(unit, str):
        return None
    factor = units.get(unit.strip())
    if factor is None or not 0 <= value <= 1e30:
        return None
    measured = float(value) * factor
    return measured if math.isfinite(measured) else None
