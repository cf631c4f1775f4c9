"""Formats measured numbers in few characters, with their unit. Pure."""

from __future__ import annotations

_SIZES = ("", "K", "M", "G", "T", "P", "E")


def number(value: float, unit: str) -> str:
    """`83%`, `40.2G`, `12.0M/s`, `2.41kW`, `850µs`; negative ones with a minus."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    if unit in {"bytes", "bytes/s"}:
        return sign + _bytes(size) + unit.removeprefix("bytes")
    if unit == "µs":
        return sign + _time(size)
    if unit == "W" and size >= 1000:
        return f"{sign}{size / 1000:.2f}kW"
    return f"{sign}{_short(size)}{unit}"


def _bytes(value: float) -> str:
    step = 0
    while value >= 999.5 and step < len(_SIZES) - 1:
        value /= 1024
        step += 1
    return f"{value:.0f}B" if step == 0 else f"{_short(value)}{_SIZES[step]}"


def _time(value_us: float) -> str:
    for length, unit in ((1e6, "s"), (1e3, "ms")):
        if value_us >= length:
            return f"{_short(value_us / length)}{unit}"
    return f"{_short(value_us)}µs"


def _short(value: float) -> str:
    """Three significant digits."""
    if value == int(value) and value < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
