"""Measured numbers with their true units. Pure."""

from __future__ import annotations

_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float, unit: str) -> str:
    """`97 %`, `12.5 GB/s`, `100 Gbit/s`, `3 ms`."""
    if unit == "bytes/s":
        return _scaled(value, "B/s")
    if unit == "bit/s":
        return _scaled(value, "bit/s")
    if unit == "s":
        return seconds(value)
    return f"{_short(value)} {unit}".rstrip()


def seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:.0f} min"
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value * 1e6)} µs" if value else "0 s"


def _scaled(value: float, unit: str) -> str:
    for size, letter in _STEPS:
        if value >= size:
            return f"{_short(value / size)} {letter}{unit}"
    return f"{_short(value)} {unit}"


def _short(value: float) -> str:
    """Three digits that count."""
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
