"""Differences as short text. Pure."""

from __future__ import annotations

from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.features.compare.model import Change


def signed(value: float, unit: str, style: Style) -> str:
    """Return a number with its sign."""
    text = number(value, unit)
    return minus(text if value < 0 else f"+{text}", style)


def percent(value: float, style: Style) -> str:
    """Format a percentage: `−12 %`, `+0.4 %`."""
    return minus(f"{value:+.{_digits(value)}f} %", style)


def interval(change: Change, unit: str, style: Style) -> str:
    """Format an interval: `−15 to −9 %`, or in the metric's own unit without percentages."""
    low, high = change.percent_low, change.percent_high
    if low is None or high is None:
        edges = (change.absolute_low, change.absolute_high)
        return " to ".join(signed(each, unit, style) for each in edges)
    digits = max(_digits(low), _digits(high)) if max(abs(low), abs(high)) < 10 else 0
    return minus(f"{low:+.{digits}f} to {high:+.{digits}f} %", style)


def size(change: Change, unit: str, style: Style) -> str:
    """Format the difference, in percent if possible."""
    if change.percent is not None:
        return percent(change.percent, style)
    return signed(change.absolute, unit, style)


def minus(text: str, style: Style) -> str:
    """Use a true minus sign if the terminal can show it."""
    return text.replace("-", style.glyph("−", "-"))


def _digits(value: float) -> int:
    return 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.095 or value == 0 else 2
