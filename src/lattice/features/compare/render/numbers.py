"""Measured numbers and differences in few letters. Pure."""

from __future__ import annotations

from lattice.base.style import Style
from lattice.features.compare.model import Change

_SIZES = ("", "K", "M", "G", "T", "P", "E")


def number(value: float, unit: str) -> str:
    """`83%`, `40.2G`, `12.0M/s`, `2.41kW`, `850µs`; below zero with a minus."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    if unit in {"bytes", "bytes/s"}:
        return sign + _bytes(size) + unit.removeprefix("bytes")
    if unit == "µs":
        return sign + _time(size)
    if unit == "W" and size >= 1000:
        return f"{sign}{size / 1000:.2f}kW"
    return f"{sign}{_short(size)}{unit}"


def signed(value: float, unit: str, style: Style) -> str:
    """The same with its sign, as a difference has one."""
    text = number(value, unit)
    return minus(text if value < 0 else f"+{text}", style)


def percent(value: float, style: Style) -> str:
    """`−12 %`, `+0.4 %`."""
    return minus(f"{value:+.{_digits(value)}f} %", style)


def interval(change: Change, unit: str, style: Style) -> str:
    """`−15 to −9 %`; in the metric's own unit where there are no percents."""
    low, high = change.percent_low, change.percent_high
    if low is None or high is None:
        edges = (change.absolute_low, change.absolute_high)
        return " to ".join(signed(each, unit, style) for each in edges)
    digits = max(_digits(low), _digits(high)) if max(abs(low), abs(high)) < 10 else 0
    return minus(f"{low:+.{digits}f} to {high:+.{digits}f} %", style)


def size(change: Change, unit: str, style: Style) -> str:
    """The difference itself."""
    if change.percent is not None:
        return percent(change.percent, style)
    return signed(change.absolute, unit, style)


def minus(text: str, style: Style) -> str:
    """With a true minus where it can be shown."""
    return text.replace("-", style.glyph("−", "-"))


def _digits(value: float) -> int:
    return 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.095 or value == 0 else 2


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
    """Three digits that count."""
    if value == int(value) and value < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
